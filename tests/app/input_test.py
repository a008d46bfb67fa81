# SPDX-License-Identifier: Apache-2.0
"""Bad command lines and bad inputs: everything that is wrong at once, printed once, exit code 2, nothing started."""
import re
import unittest

import program
from program import AppTest


class CommandLine(AppTest):
    def words(self, *arguments, ranks=0):
        run = program.Run(ranks, arguments, self.folder)
        self.addCleanup(run.kill)
        run.finish()
        return run

    def test_help(self):
        run = self.words("--help")
        self.assertEqual((run.code, run.err), (0, ""))
        for word in ("FILE [KEY=VALUE ...]", "--check", "--ranks", "--help-input", "Exit codes"):
            self.assertIn(word, run.out)

    def test_help_input_lists_keys_with_defaults(self):
        run = self.words("--help-input")
        self.assertEqual(run.code, 0)
        self.assertRegex(run.out, r"\[optimizer\]\n  type +default: \"adamw\"\n")
        self.assertLess(max(map(len, run.out.splitlines())), 130)

    def test_version(self):
        run = self.words("--version", ranks=3)
        self.assertEqual(run.code, 0)
        self.assert_once("p3d ", run.out)
        for line in (r"p3d \d+\.\d+\.\d+ \(git .+\)", "build  .+", "compiler  .+",
                     r"Kokkos   +\d+\.\d.*, backends [A-Z]+.*", r"Kokkos-Kernels +\d+\.\d.*",
                     "BLAS  .*blas.*", r"MPI  .*\d+\.\d.*", r"HDF5  +\d+\.\d+\.\d+"):
            self.assertRegex(run.out, f"(?m)^{line}$")

    def test_refuses_what_it_would_ignore(self):
        for arguments in ([], ["--chek"], ["input.toml", "--ranks", "4"], ["input.toml", "other.toml"],
                          ["--ranks", "0", "input.toml"]):
            with self.subTest(arguments=arguments):
                run = self.words(*arguments, ranks=2)
                self.assertEqual((run.code, run.out), (2, ""))
                self.assertEqual(len(re.findall("^expected: ", run.err, re.MULTILINE)), 1, run.err)
                self.assertEqual(len(re.findall("^fix: ", run.err, re.MULTILINE)), 1, run.err)

    def test_a_number_of_ranks(self):
        for word in ("0", "-1", "1.5", "99999999999"):
            said = self.words("--check", "input.toml", "--ranks", word).err
            self.assertIn(f"{word} is no whole number from 1 to 1073741824", said)

    def test_suggests_the_nearest_option(self):
        self.assertIn("did you mean --check?", self.words("--chek", "input.toml").err)


class BadInput(AppTest):
    def refused(self, case, ranks, *arguments, errors=1):
        run = self.run_to_end(ranks, *arguments)
        self.report(case, run, run.seconds)
        self.assertEqual((run.code, run.out), (2, ""), run.err)
        self.assert_once("the input has ", run.err)
        self.assertTrue(run.err.startswith(f"the input has {errors} error"), run.err)
        self.assertEqual(len(re.findall(r"^   expected: ", run.err, re.MULTILINE)), errors, run.err)
        self.assertEqual(len(re.findall(r"^   fix: ", run.err, re.MULTILINE)), errors, run.err)
        self.assertFalse(self.results.exists())
        return run.err

    def test_misspelt_key(self):
        text = program.MODEL.replace("layers =", "layer =")
        (self.folder / "input.toml").write_text(text)
        line = text[:text.index("layer =")].count("\n") + 1
        said = self.refused("misspelt key, 8 ranks", 8)
        self.assertIn(f"input.toml:{line}:1", said)
        self.assertIn("did you mean layers?", said)

    def test_all_errors_at_once(self):
        said = self.refused("four errors, 8 ranks", 8, "model.hiden=3", "optimizer.lr=fast", "data.path=nowhere.txt",
                            "parallel.dp=3", errors=4)
        for words in ("did you mean model.hidden?", 'the string "fast"', "nowhere.txt: no such file",
                      "dp 3 x tp 1 x cp 1 x pp 1 = 3 ranks"):
            self.assert_once(words, said)

    def test_missing_input(self):
        run = program.Run(8, ["nowhere.toml"], self.folder)
        self.addCleanup(run.kill)
        self.report("input file missing, 8 ranks", run, run.finish())
        self.assertEqual((run.code, run.out), (2, ""))
        self.assert_once("expected:", run.err)
        self.assertIn("nowhere.toml", run.err)

    def test_missing_data(self):
        said = self.refused("data file missing, 8 ranks", 8, "data.path=nowhere.txt")
        self.assertIn("nowhere.txt", said)

    def test_wrong_number_of_ranks(self):
        said = self.refused("4 ranks for 2 x 2 x 2", 4, "parallel.dp=2", "parallel.tp=2", "parallel.pp=2")
        self.assertIn("dp 2 x tp 2 x cp 1 x pp 2 = 8 ranks, but the run has 4", said)
        self.assertIn("-n 8", said)

    def test_rounds_between_ranks_that_are_no_neighbours(self):
        stages = {0: 0, 1: 2, 2: 1, 3: 3}
        lines = [f"rank {rank}: " + " ".join(f"{stage}{op}{m}" for op in "FB" for m in range(4))
                 for rank, stage in stages.items()]
        (self.folder / "far.txt").write_text(
            "\n".join(["p3d-schedule 1 stages=4 ranks=4 microbatches=4 placement=0,2,1,3", *lines]))
        words = ("parallel.pp=4", "batch.microbatches=4", "model.layers=4", "pipeline.schedule=file",
                 "pipeline.file=far.txt")
        run = self.run_to_end(4, *words, "pipeline.p2p=ring")
        self.report("messages past a neighbour, 4 ranks", run, run.seconds)
        self.assertEqual((run.code, run.out), (2, ""), run.err)
        self.assert_once("found:    0SEND_F0@0 of rank 0, which goes to rank 2", run.err)
        self.assert_once("where:    pipeline.p2p", run.err)
        self.assertEqual(len(re.findall(r"^ *fix: ", run.err, re.MULTILINE)), 1, run.err)
        run = self.run_to_end(4, *words, "pipeline.p2p=batched")
        self.assertEqual(run.code, 0, run.err)

    def test_nccl_where_there_is_none(self):
        run = self.run_to_end(4, "parallel.dp=4", "comm.backend=nccl", "run.deterministic=false")
        self.report("comm.backend = nccl without GPUs, 4 ranks", run, run.seconds)
        self.assertEqual(run.code, 2, run.err)
        self.assertRegex(run.err, "neither NCCL nor RCCL|kernels on the host")
        self.assertEqual(len(re.findall(r"^ *fix: ", run.err, re.MULTILINE)), 1, run.err)


class Check(AppTest):
    def test_check_tells_how_experts_are_dealt(self):
        words = ("--check", "--ranks", "4", "parallel.dp=4", "parallel.ep=4", "model.moe.experts=8",
                 "batch.microbatches=6", "data.format=synthetic")
        run = self.run_to_end(0, *words, "comm.overlap_experts=true")
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertIn("a rank has 2 experts (ep 4, etp 1), and room for 2 times the rows of balanced ones", run.out)
        self.assertIn("5 of 6 forwards interleave with a backward", run.out)
        run = self.run_to_end(0, *words, "model.moe.dispatch=gather")
        self.assertIn("(ep 4, etp 1), and room for all rows", run.out)
        self.assertNotIn("interleave with", run.out)

    def test_uneven_layers(self):
        run = self.run_to_end(0, "--check", "--ranks", "4", "parallel.pp=4", "model.layers=30")
        self.assertEqual((run.code, run.err), (0, ""))
        self.assertIn("layers by stage: 8 + 8 + 7 + 7 (sum 30)", run.out)
        self.assertFalse(self.results.exists())

    def test_errors_are_those_of_a_run(self):
        run = self.run_to_end(0, "--check", "--ranks", "4", "parallel.pp=3")
        self.assertEqual((run.code, run.out), (2, ""))
        self.assert_once("expected:", run.err)

    def test_inputs_that_come_with_p3d(self):
        inputs = sorted((program.SOURCE / "inputs").glob("*.toml"))
        self.assertGreater(len(inputs), 2)
        for path in inputs:
            if path.name == "whole-way.toml":
                continue  # it names files that its script makes: below
            with self.subTest(path=path.name):
                self.check_is_valid(path, f"data.path={program.SOURCE / 'docs'}")

    def test_the_input_of_the_whole_way(self):
        """In a copy of the folder, with a tokenizer and tokens where scripts/whole-way.sh puts them."""
        (self.folder / "inputs").mkdir()
        copy = self.folder / "inputs" / "whole-way.toml"
        copy.write_text((program.SOURCE / "inputs" / "whole-way.toml").read_text())
        self.assertIn("tokenizer.json: no such file", self.check(copy).err)

        results, text = self.folder / "runs" / "whole-way", program.SOURCE / "docs"
        results.mkdir(parents=True)
        for words in (["tokenizer", "train", text, "--vocab-size", 2048, "--special", "<|endoftext|>", "--out",
                       results / "tokenizer.json"],
                      ["data", "tokenize", text, "--tokenizer", results / "tokenizer.json", "--out",
                       results / "licences"]):
            run = program.Run(0, list(map(str, words)), self.folder)
            run.finish()
            self.assertEqual(run.code, 0, run.err)
        run = self.check_is_valid(copy)
        self.assertRegex(run.out, r"(?m)^Tokenizer: \S*tokenizer.json: byte-level BPE, 2048 tokens$")
        self.assertRegex(run.out, r"(?m)^Data: \S*licences.bin, \d+ tokens .* training windows of 128 tokens, ")

        # What a run refuses at its start --check refuses too, all of it.
        tokens, note = results / "licences", results / "licences.meta.json"
        for words, keys in ((["a model of 2048 to 3072 tokens", "found:    model.vocab_size = 1024"],
                             ["model.vocab_size=1024"]),
                            (["at least 1048577 training tokens"], ["model.seq_len=1048576"])):
            run = self.check(copy, *keys)
            self.assertEqual(run.code, 2, run.out)
            self.assertNotIn("The input is valid.", run.out)
            for word in words:
                self.assertIn(word, run.err)

        # Tokens of another tokenizer: both hashes, the file and the fix, from --check and from a run.
        other = self.folder / "other.json"
        other.write_text((results / "tokenizer.json").read_text() + "\n")
        hashes = [self.hash_of(file) for file in (results / "tokenizer.json", other)]
        self.assertNotEqual(*hashes)
        for tokenizer in (other, "bytes"):
            for first in (["--check"], ["parallel.dp=1", "parallel.tp=1"]):
                keys = (f"data.tokenizer={tokenizer}", "sample.tokens=0")
                run = program.Run(0, [*first, str(copy), *keys], self.folder)
                run.finish()
                self.assertEqual(run.code, 2, run.out)
                for word in (f"tokens of tokenizer.json (hash {hashes[0]})", "licences.meta.json says",
                             "licences.bin of", "set data.tokenizer to the file tokenizer.json"):
                    self.assertIn(word, run.err)
                self.assertIn("\"bytes\" (hash " if tokenizer == "bytes" else f"other.json (hash {hashes[1]})", run.err)
        note.unlink()
        run = self.check_is_valid(copy, f"data.tokenizer={other}")
        self.assertIn("Tokenizer: not compared with that of 1 of 1 token file (no ", run.out)

        # The index and the vocabulary are wrong: both are said.
        data = (tokens.with_suffix(".idx")).read_bytes()
        tokens.with_suffix(".idx").write_bytes(data[:-8])
        run = self.check(copy, "model.vocab_size=1024")
        self.assertEqual(run.code, 2)
        self.assertIn("licences.idx, byte ", run.err)
        self.assertIn("model.vocab_size = 1024", run.err)

    def hash_of(self, tokenizer):
        run = program.Run(0, ["tokenizer", "show", str(tokenizer)], self.folder)
        run.finish()
        return run.out.split()[-1]

    def check(self, *words):
        run = program.Run(0, ["--check", *map(str, words)], self.folder)
        run.finish()
        return run

    def check_is_valid(self, *words):
        run = self.check(*words)
        if "configure p3d with -DP3D_16BIT=ON" in run.err:
            self.skipTest("this build has no types of 16 bits")
        self.assertEqual((run.code, run.err), (0, ""))
        self.assertIn("The input is valid.", run.out)
        return run

    def test_a_hundred_thousand_ranks(self):
        (self.folder / "input.toml").write_text('[model]\npreset = "llama3-70b"\n[data]\nformat = "synthetic"\n')
        run = self.run_to_end(0, "--check", "--ranks", "100000", "parallel.tp=8", "parallel.pp=50",
                              "batch.microbatches=100")
        print(f"\n  measured: --check for 100,000 ranks: {run.seconds:.2f} s, {len(run.out.splitlines())} lines",
              flush=True)
        self.assertEqual((run.code, run.err), (0, ""))
        self.assertIn("Mesh: 100000 ranks, order tp=8 cp=1 pp=50 dp=250", run.out)
        described = run.out[run.out.index("Mesh: "):]
        self.assertLess(len(described.splitlines()), 40)
        self.assertLess(max(map(len, run.out.splitlines())), 200)
        self.assertEqual(sum(int(n) * int(times or 1) for n, times in
                             re.findall(r"(\d+)(?: x (\d+))?", re.search(r"layers by stage: (.*) \(", run.out)[1])), 80)


if __name__ == "__main__":
    unittest.main()
