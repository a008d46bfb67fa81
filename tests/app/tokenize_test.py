# SPDX-License-Identifier: Apache-2.0
"""p3d data tokenize and p3d tokenizer: what they write, what they refuse, and how they go on after an interruption."""
import gzip
import json
import pathlib
import resource
import signal
import struct
import subprocess
import time
import unittest

import program
from program import AppTest

TOKENIZERS = program.SOURCE / "tests" / "unit" / "text" / "tokenizers"
GPT2 = str(TOKENIZERS / "gpt2.json")


def p3d(*arguments, folder, text=None, limit=None):
    """(exit code, standard output, standard error); `limit`: bytes that a file may have."""
    def before():
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    done = subprocess.run([program.PROGRAM, *map(str, arguments)], cwd=folder, input=text, capture_output=True,
                          timeout=program.PATIENCE, preexec_fn=before)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def index(path):
    """(type, tokens of each sequence, sequence of each document) of an .idx file."""
    data = path.read_bytes()
    assert data[:9] == b"MMIDIDX\0\0" and data[9:17] == struct.pack("<Q", 1)
    kind, sequences, documents = struct.unpack_from("<BQQ", data, 17)
    lengths = struct.unpack_from(f"<{sequences}i", data, 34)
    starts = struct.unpack_from(f"<{documents}q", data, 34 + 12 * sequences)
    assert len(data) == 34 + 12 * sequences + 8 * documents
    return kind, lengths, starts


class Tokenize(AppTest):
    def setUp(self):
        super().setUp()
        self.corpus = self.folder / "corpus"
        self.corpus.mkdir()
        lines = "".join(json.dumps({"id": i, "text": f"Document {i} is number {i * i}.\n"}) + "\n" for i in range(500))
        (self.corpus / "a.jsonl").write_text(lines)
        with gzip.open(self.corpus / "b.jsonl.gz", "wt") as file:
            file.write(lines)
        (self.corpus / "c.txt").write_text("".join(f"Line {i} of a text.\n" for i in range(200_000)))

    def tokenize(self, *arguments, **options):
        return p3d("data", "tokenize", *arguments, folder=self.folder, **options)

    def good(self, *arguments, **options):
        code, out, err = self.tokenize(*arguments, **options)
        self.assertEqual((code, err), (0, ""), out)
        return out

    def refused(self, *arguments, words, code=2, **options):
        found, out, err = self.tokenize(*arguments, **options)
        self.assertEqual(found, code, out + err)
        for word in words:
            self.assert_once(word, err)
        self.assertFalse((self.folder / "out.idx").exists())

    def dataset(self, prefix):
        return (self.folder / f"{prefix}.bin").read_bytes(), (self.folder / f"{prefix}.idx").read_bytes()

    def test_threads_and_ranks_write_the_same(self):
        out = self.good("corpus", "--tokenizer", GPT2, "--out", "one", "--threads", "1")
        self.assertRegex(out, r"1001 documents, \d+ tokens, \d+ bytes of text, [\d.]+ bytes a token; .* MB/s: one.bin")
        self.good("corpus", "--tokenizer", GPT2, "--out", "three", "--threads", "3")
        run = self.start_words(3, "data", "tokenize", "corpus", "--tokenizer", GPT2, "--out", "ranks")
        run.finish()
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        self.assertEqual(self.dataset("one"), self.dataset("three"))
        self.assertEqual(self.dataset("one"), self.dataset("ranks"))
        kind, lengths, starts = index(self.folder / "one.idx")
        self.assertEqual((kind, starts), (8, tuple(range(1002))))
        self.assertEqual(lengths[:500], lengths[500:1000])
        self.assertEqual(2 * sum(lengths), len(self.dataset("one")[0]))

    def start_words(self, ranks, *words):
        run = program.Run(ranks, words, self.folder)
        self.addCleanup(run.kill)
        return run

    def test_the_tokens_are_those_of_encode(self):
        self.good("corpus/a.jsonl", "--tokenizer", GPT2, "--out", "a", "--dtype", "i32")
        tokens = struct.unpack(f"<{len(self.dataset('a')[0]) // 4}i", self.dataset("a")[0])
        kind, lengths, _ = index(self.folder / "a.idx")
        code, out, err = p3d("tokenizer", "encode", GPT2, "--text", "Document 0 is number 0.\n", folder=self.folder)
        self.assertEqual((code, err, kind), (0, "", 4))
        self.assertEqual(list(tokens[:lengths[0]]), [int(word) for word in out.split()] + [0])
        self.good("corpus/a.jsonl", "--tokenizer", GPT2, "--out", "b", "--no-eod")
        self.assertEqual(index(self.folder / "b.idx")[1], tuple(n - 1 for n in lengths))

    def test_a_killed_run_goes_on(self):
        self.good("corpus", "--tokenizer", GPT2, "--out", "whole")
        parts = self.folder / "killed.parts"
        run = self.start_words(0, "data", "tokenize", "corpus", "--tokenizer", GPT2, "--out", "killed",
                               "--threads", "1")
        run.wait_until(lambda: run.process.poll() is not None or (parts / "000000.len").exists(), "the first part")
        run.process.send_signal(signal.SIGKILL)
        run.finish()
        if run.code == 0:
            self.skipTest("it was through before it was killed")
        self.assertTrue((parts / "000000.bin").exists())
        out = self.good("corpus", "--tokenizer", GPT2, "--out", "killed")
        self.assertRegex(out, r"going on: [1-9]\d* of \d+ parts are done")
        self.assertEqual(self.dataset("whole"), self.dataset("killed"))
        self.assertFalse(parts.exists())

    def test_changed_inputs_start_over(self):
        self.refused("corpus", "--tokenizer", GPT2, "--out", "out", "--json-key", "body",
                     words=["corpus/a.jsonl:1\n", "no key \"body\""])
        time.sleep(0.01)
        (self.corpus / "c.txt").write_text("Another text.\n")
        self.assertIn("starting over: what is in out.parts", self.good("corpus", "--tokenizer", GPT2, "--out", "out"))
        self.assertEqual(index(self.folder / "out.idx")[2][-1], 1001)

    def test_an_output_among_the_inputs_is_no_text(self):
        self.good("corpus", "--tokenizer", GPT2, "--out", "apart")
        (self.corpus / "old.parts").mkdir()  # of a start that was interrupted
        (self.corpus / "old.parts/plan").write_text("p3d data tokenize, parts of version 1\ntokenizer 0\n")
        for prefix in ("corpus/first", "corpus/second"):
            self.good("corpus", "--tokenizer", GPT2, "--out", prefix)
            self.assertEqual(self.dataset(prefix), self.dataset("apart"))
        self.refused("corpus/first.meta.json", "--tokenizer", GPT2, "--out", "out", words=["token files"])

    def test_refusals_name_file_and_line(self):
        def refused(name, data, *words, arguments=("--tokenizer", GPT2), code=2):
            (self.folder / name).write_bytes(data)
            self.refused(name, *arguments, "--out", "out", words=words, code=code)

        refused("x.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', "x.jsonl:3\n")
        refused("y.jsonl", b'{"text": 5}\n', "y.jsonl:1\n", "a number instead of a string")
        refused("z.txt", b"", "found:    none in 1 file")
        packed = gzip.compress(b"some text " * 1000)
        refused("t.txt.gz", packed[:-12], "t.txt.gz\n", "a file that ends too early")
        zstd = bytes.fromhex("28b52ffd0458290000") + b"hello"  # the head of a frame, and too little
        refused("t.txt.zst", zstd, "t.txt.zst\n")
        refused("a.txt", b"text", "leave out --append-eod", arguments=("--tokenizer", "bytes", "--append-eod"))
        (self.folder / "u.json").write_text('{"model":{"type":"Unigram"}}')
        refused("b.txt", b"text", "asks for the model \"Unigram\"", arguments=("--tokenizer", "u.json"))
        self.refused("none.txt", "--tokenizer", GPT2, "--out", "out", words=["none.txt"])
        self.good("a.txt", "--tokenizer", "bytes", "--out", "there")
        self.refused("a.txt", "--tokenizer", "bytes", "--out", "there", words=["a dataset that is not there yet"])

    def test_what_is_no_text(self):
        """Of a folder it is left out with a line; named itself it is refused."""
        binaries = {"a-logo.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
                    "program": b"\x7fELF" + bytes(900), "notes.txt": "text".encode("utf-16"),
                    "paper.pdf": b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\nstream\n\x01\xb7\x9c\x02\xff",
                    "packed.txt.gz": gzip.compress(bytes(5000))}
        texts = {"latin1.txt": "Gr\xfc\xdfe aus K\xf6ln\n".encode("latin-1"), "utf8.txt": "Grüße\f\n".encode(),
                 "colours.log": b"\x1b[31mred\x1b[0m\r\n", "packed.gz": gzip.compress(b"a text\n")}
        (self.folder / "mixed").mkdir()
        (self.folder / "texts").mkdir()
        for name, data in {**binaries, **texts}.items():
            (self.folder / "mixed" / name).write_bytes(data)
        for name, data in texts.items():
            (self.folder / "texts" / name).write_bytes(data)
        self.good("texts", "--tokenizer", "bytes", "--out", "texts-alone")
        out = self.good("mixed", "--tokenizer", "bytes", "--out", "of-mixed")
        self.assertEqual(self.dataset("texts-alone"), self.dataset("of-mixed"))
        for name in binaries:
            self.assertRegex(out, rf"(?m)^left out, as it is no text: mixed/{name}: ")
        self.assertEqual(out.count("left out"), len(binaries))
        self.refused("texts", "mixed/a-logo.png", "--tokenizer", "bytes", "--out", "out",
                     words=["mixed/a-logo.png: a NUL at byte 9", "the inputs on the command line"])
        self.refused("mixed/notes.txt", "--tokenizer", "bytes", "--out", "out", words=["convert it to UTF-8"])
        code, out, err = p3d("tokenizer", "train", "mixed", "--vocab-size", 260, "--out", "t.json", folder=self.folder)
        self.assertEqual((code, out.count("left out, as it is no text: mixed/")), (0, len(binaries)), out + err)

    def test_a_run_says_that_text_is_none(self):
        (self.corpus / "logo.png").write_bytes(b"\x89PNG\0\0\0\r")
        (self.folder / "bytes.toml").write_text('[model]\nseq_len = 16\n[data]\npath = "corpus"\n')
        code, out, err = p3d("--check", "bytes.toml", folder=self.folder)
        self.assertEqual((code, err), (0, ""), out)
        self.assertRegex(out, r"data.path: 3 of 4 files are no text, and read as it is .* \(\S*corpus/a.jsonl: lines")

    def test_help_lists_it(self):
        code, out, _ = p3d("data", "--help", folder=self.folder)
        self.assertEqual(code, 0)
        self.assertRegex(out, r"(?m)^ +tokenize +make token files of text")

    def test_the_note_about_the_tokenizer(self):
        self.good("corpus/a.jsonl", "--tokenizer", GPT2, "--out", "one")
        self.good("corpus/a.jsonl", "--tokenizer", "bytes", "--out", "two")
        note = json.loads((self.folder / "one.meta.json").read_text())
        code, shown, _ = p3d("tokenizer", "show", GPT2, folder=self.folder)
        self.assertIn(note["tokenizer"]["hash"], shown)
        self.assertEqual((note["tokenizer"]["name"], note["tokenizer"]["vocab_size"], note["end_of_document"]),
                         ("gpt2.json", 1300, 0))
        code, shown, _ = p3d("data", "show", "one", "two", folder=self.folder)
        self.assertIn(f"made with gpt2.json, 1300 tokens (hash {note['tokenizer']['hash']}); token 0 after each", shown)
        self.assertRegex(shown, r"made with bytes, 256 tokens \(hash [0-9a-f]{16}\); nothing after a document")
        code, shown, _ = p3d("data", "head", "one", "--tokenizer", GPT2, folder=self.folder)
        self.assertEqual(code, 0)
        self.assertIn("text: Document 0 is number 0.", shown)
        code, shown, err = p3d("data", "head", "one", "--tokenizer", "bytes", folder=self.folder)
        self.assertEqual((code, shown), (2, ""))
        self.assertIn(f"found:    tokens of gpt2.json (hash {note['tokenizer']['hash']}), as one.meta.json says\n", err)
        keys = ("--check", "data.format=megatron", "data.path=one", "data.shuffle=documents", "data.pack=true",
                f"data.tokenizer={GPT2}", "model.vocab_size=1300", "model.seq_len=8", "batch.global=1")
        warning = "one.meta.json says that token 0 ends a document: documents are cut where 7 stands instead"
        for token, warned in (("7", True), ("0", False)):
            code, shown, err = p3d(*keys, f"data.eod_token={token}", folder=self.folder)
            self.assertEqual(warning in shown + err, warned, shown + err)
        # Another length of PREFIX.bin: the note is of other tokens.
        with open(self.folder / "one.bin", "ab") as file:
            file.write(b"\0\0")
        code, _, err = p3d("data", "show", "one", folder=self.folder)
        self.assertEqual(code, 2)
        (self.folder / "two.meta.json").write_text('{"tokenizer": {"hash": "x"}}')
        code, _, err = p3d("data", "show", "two", folder=self.folder)
        self.assertEqual(code, 2)
        self.assertIn("two.meta.json\n", err)

    def test_a_full_disk(self):
        # Files of 12 MB hold the shared memory of MPI and each part, but not the dataset.
        words = ("corpus", "--tokenizer", "bytes", "--dtype", "i32", "--out", "out")
        self.refused(*words, limit=12_000_000, code=1, words=["to write out.bin.partial"])
        self.assertEqual(list(self.folder.glob("out*.partial")), [])
        self.assertRegex(self.good(*words), r"going on: (\d+) of \1 parts are done")  # the same command goes on


class Tokenizer(AppTest):
    def p3d(self, *arguments, text=None, code=0):
        found, out, err = p3d("tokenizer", *arguments, folder=self.folder, text=text)
        self.assertEqual(found, code, err)
        return out if code == 0 else err

    def test_show_encode_decode(self):
        self.assertIn("gpt2.json: byte-level BPE, 1300 tokens\n", self.p3d("show", GPT2))
        self.assertIn('end of document  0 "<|endoftext|>"\n', self.p3d("show", GPT2))
        text = "Grüße, <|endoftext|> 1 2\n"
        ids = self.p3d("encode", GPT2, "--text", text)
        self.assertEqual(self.p3d("decode", GPT2, *ids.split()), text)
        self.assertEqual(self.p3d("decode", GPT2, text=ids.encode()), text)
        special = self.p3d("encode", GPT2, "--text", text, "--special-tokens").split()
        self.assertIn("0", special)
        self.assertNotIn("0", ids.split())
        self.assertIn("a token from 0 to 1299", self.p3d("decode", GPT2, "1300", code=2))
        self.assertIn("found:    x", self.p3d("decode", GPT2, "x", code=2))

    def test_train(self):
        (self.folder / "words.txt").write_text("low lower lowest new newer newest " * 50)
        out = self.p3d("train", "words.txt", "--vocab-size", "270", "--out", "t.json", "--special", "<a>", "--special",
                       "<b>")
        self.assertIn("270 tokens and 12 merges", out)
        self.assertEqual(self.p3d("encode", "t.json", "--text", "<a>x<b>", "--special-tokens").split()[::2], ["0", "1"])
        first = (self.folder / "t.json").read_bytes()
        self.p3d("train", "words.txt", "--vocab-size", "270", "--out", "t.json", "--special", "<a>", "--special", "<b>")
        self.assertEqual(first, (self.folder / "t.json").read_bytes())
        self.assertIn("no pair is left", self.p3d("train", "words.txt", "--vocab-size", "900", "--out", "u.json"))
        self.assertIn("at least 257", self.p3d("train", "words.txt", "--vocab-size", "256", "--out", "v.json", code=2))
        self.assertFalse(pathlib.Path(self.folder, "v.json").exists())


if __name__ == "__main__":
    unittest.main()
