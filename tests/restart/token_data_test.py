# SPDX-License-Identifier: Apache-2.0
"""Token files: the same losses from a blend of sources under every layout and across a resume."""
import json
import pathlib
import random
import shutil
import struct
import tempfile
import unittest

import restarts

EOD = 0
BLEND = ("data.format=megatron", "data.path=[]", "data.eod_token=0", "run.precision=fp64", "run.eval_batches=2",
         "data.source=[{path='one', weight=2}, {path='two.idx', weight=0.5}]", "batch.global=12")
DOCUMENTS = (*BLEND, "data.shuffle=documents", "data.eod_mask_loss=true")
MEGATRON = (*BLEND, "data.shuffle=megatron")
TOLERANCE = 1e-9


def write_pair(prefix, documents, kind="H", code=8):
    """`documents`: lists of ids; `kind`: of struct, `code`: of the format."""
    item, begins, at = struct.calcsize(kind), [], 0
    for document in documents:
        begins.append(at)
        at += item * len(document)
    prefix.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(d)}{kind}", *d) for d in documents))
    n = len(documents)
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, n + 1) + struct.pack(f"<{n}i", *map(len, documents)) +
        struct.pack(f"<{n}q", *begins) + struct.pack(f"<{n + 1}q", *range(n + 1)))


def lines(seed, count):
    draw = random.Random(seed)
    return [[*f"{seed}: item {i} costs {draw.randrange(1, 60)} coins\n".encode(), EOD] for i in range(count)]


class TokenData(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="p3d-token-data-")
        cls.folder = pathlib.Path(cls.temporary.name)
        restarts.write_inputs(cls.folder)
        write_pair(cls.folder / "one", lines(1, 60))
        write_pair(cls.folder / "two", lines(2, 40), "i", 4)
        for layout in ("1", "2dp", "2tp", "4tp-pp"):
            restarts.train(cls.folder, layout, f"on-{layout}", *DOCUMENTS)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def goes_on(self, first, then, output, *keys):
        (self.folder / output / "checkpoints").mkdir(parents=True)
        shutil.copy(self.folder / first / "metrics.csv", self.folder / output)
        shutil.copy(self.folder / restarts.checkpoint(first, restarts.HALF), self.folder / output / "checkpoints")
        self.out = restarts.train(self.folder, then, output, *keys)
        self.assertIn(f"step {restarts.HALF},", self.out)
        return restarts.rows(self.folder, output)

    def same(self, rows, reference):
        """Steps, losses and validation losses."""
        self.assertEqual([row[0] for row in rows], [row[0] for row in reference])
        for row, other in zip(rows, reference):
            for a, b in ((row[2], other[2]), (row[-1], other[-1])):
                self.assertEqual(a == "", b == "")
                if a:
                    self.assertLessEqual(abs(float(a) - float(b)) / abs(float(b)), TOLERANCE, f"{row} {other}")

    def test_a_token_that_cannot_be_read_costs_no_step(self):
        documents = lines(1, 60)
        documents[9][2] = 60000  # first read in the second half of the run
        write_pair(self.folder / "spoiled", documents)
        keys = ("data.format=megatron", "run.precision=fp64", "batch.global=4", "data.split=0")
        for layout, *more in (("1",), ("4tp-pp",), ("2dp", "data.pack=true", "data.eod_token=0"),
                              ("2dp", "optimizer.post_validation=true", "optimizer.grad_clip=0"),
                              ("2pp-zb_v", "pipeline.schedule=1f1b", "optimizer.delay=1", "pipeline.flush=never")):
            with self.subTest(layout=layout, more=more):
                name = "-".join((layout, *more)).replace("=", "-")
                restarts.train(self.folder, layout, f"whole-{name}", *keys, "data.path=one", *more)
                command = restarts.keys(layout, f"spoiled-{name}", *keys, "data.path=spoiled", *more)
                for start in (1, 2):  # the second reads the same data before its first step
                    code, out, err = restarts.tool(self.folder, "input.toml", *command, ranks=restarts.ranks(layout))
                    self.assertEqual(code, 2, out + err)
                    self.assertEqual((out + err).count("found:    60000"), 1, out + err)
                    self.assertIn("spoiled.bin, token 233, byte 466, document 9", out + err)
                    self.assertEqual("cannot be read" in out, start == 1, out)
                    rows = restarts.losses(self.folder, f"spoiled-{name}")
                    self.assertLess(restarts.HALF, len(rows))
                    self.assertLess(len(rows), restarts.STEPS)
                    self.assertEqual(rows, restarts.losses(self.folder, f"whole-{name}")[:len(rows)])
                    files = sorted((self.folder / f"spoiled-{name}/checkpoints").iterdir())
                    self.assertEqual(files[-1].name, f"restart-{len(rows):08d}.h5", "and no .part")
        self.refused("in-validation", "found:    60000", *keys, "data.split=0.9", "run.eval_batches=40",
                     "data.path=spoiled")
        self.assertFalse((self.folder / "in-validation/metrics.csv").exists())

    def refused(self, output, words, *keys):
        code, out, err = restarts.run(self.folder, 0, f"run.output_dir={output}", *keys)
        self.assertEqual(code, 2, out + err)
        self.assertIn(words, out + err)

    def test_layouts(self):
        reference = restarts.rows(self.folder, "on-1")
        self.assertEqual(len(reference), restarts.STEPS)
        self.assertNotEqual(reference[-1][-1], "")
        self.assertLess(float(reference[-1][2]), float(reference[0][2]) - 0.5)  # losses can differ
        for layout in ("2dp", "2tp", "4tp-pp"):
            self.same(restarts.rows(self.folder, f"on-{layout}"), reference)

    def test_resume(self):
        reference = restarts.rows(self.folder, "on-1")
        self.assertEqual(self.goes_on("on-1", "1", "1-1", *DOCUMENTS), reference)
        self.same(self.goes_on("on-1", "2dp", "1-2dp", *DOCUMENTS), reference)
        self.same(self.goes_on("on-2dp", "4tp-pp", "2dp-4", *DOCUMENTS), reference)

    def test_other_data_are_refused(self):
        shutil.copytree(self.folder / "on-1", self.folder / "other")
        longer = (*DOCUMENTS, "run.steps=40")
        self.refused("other", "training data: hash", *longer,
                     "data.source=[{path='one', weight=2}, {path='two', weight=1}]")
        self.refused("other", 'data.shuffle: "documents" in the checkpoint, "windows" in the input', *longer,
                     "data.shuffle=windows")
        self.refused("other", "data.eod_mask_loss: true in the checkpoint", *longer, "data.eod_mask_loss=false")

    def test_order_of_megatron(self):
        restarts.train(self.folder, "1", "m1", *MEGATRON)
        restarts.train(self.folder, "4tp-pp", "m4", *MEGATRON)
        reference = restarts.rows(self.folder, "m1")
        self.same(restarts.rows(self.folder, "m4"), reference)
        self.same(self.goes_on("m1", "2dp", "m1-2dp", *MEGATRON), reference)
        self.assertNotEqual(restarts.losses(self.folder, "m1"), restarts.losses(self.folder, "on-1"))
        self.refused("m1", "run.steps: 30 in the checkpoint, 40 in the input", *MEGATRON, "run.steps=40")

    def test_eval_and_generate_know_the_data(self):
        file = restarts.checkpoint("on-1", restarts.STEPS)
        code, out, err = restarts.tool(self.folder, "eval", file)
        self.assertEqual(code, 0, out + err)
        self.assertRegex(out, r"0\.8 x \S+/one\.bin, \d+ tokens \(uint16\), 60 documents \+ 0\.2 x ")
        loss = float(out.split("loss ")[1].split()[0])
        code, again, err = restarts.tool(self.folder, "eval", file, "parallel.tp=2", ranks=2)
        self.assertEqual(code, 0, again + err)
        self.assertLess(abs(float(again.split("loss ")[1].split()[0]) - loss), 2e-10)

    def test_masked_targets_are_not_in_the_mean(self):
        """Every second token is the end of a document, and what follows it is random."""
        draw = random.Random(3)
        write_pair(self.folder / "pairs", [[draw.randrange(1, 257), EOD] for _ in range(3000)])
        keys = ("data.format=megatron", "data.path=pairs.bin", "data.eod_token=0", "model.dropout=0", "data.split=0",
                "batch.global=12", "optimizer.lr=1e-2")
        for name, mask in (("plain", "false"), ("masked", "true")):
            restarts.train(self.folder, "2dp", name, *keys, f"data.eod_mask_loss={mask}")
        plain, masked = ([float(x) for _, x in restarts.losses(self.folder, n)] for n in ("plain", "masked"))
        self.assertTrue(5.2 < masked[0] < 5.9, masked[0])  # ln 257 = 5.55, not half of it
        self.assertLess(masked[-1], 0.5)
        self.assertGreater(plain[-1], 2.3)  # at best ln(256) / 2
        # A token that never comes ends nothing: every bit as without it.
        restarts.train(self.folder, "2dp", "never", "data.eod_token=256", "data.eod_mask_loss=true")
        restarts.train(self.folder, "2dp", "off")
        self.assertEqual(restarts.losses(self.folder, "never"), restarts.losses(self.folder, "off"))

    def test_one_count_of_tokens(self):
        """Samples of their own lengths: log, metrics.csv, summary.json and checkpoints count the same inputs."""
        keys = ("data.format=megatron", "data.path=one", "data.shuffle=documents", "batch.variable=true",
                "run.precision=fp64", "model.seq_len=24", "model.dropout=0", "batch.global=12", "data.split=0.2")
        restarts.train(self.folder, "1", "short", *keys)
        reference = restarts.rows(self.folder, "short")
        tokens = {int(row[0]): int(row[1]) for row in reference}
        self.assertLess(tokens[restarts.STEPS], restarts.STEPS * 12 * 24)
        for step in (restarts.HALF, restarts.STEPS):
            code, out, err = restarts.tool(self.folder, "checkpoint", "show", restarts.checkpoint("short", step))
            self.assertRegex(out, rf"(?m)^tokens +{tokens[step]}$", err)
        summary = json.loads((self.folder / "short" / "summary.json").read_text())
        self.assertEqual(summary["tokens_per_step"], tokens[restarts.STEPS] // restarts.STEPS)
        self.same(self.goes_on("short", "2dp", "short-2dp", *keys), reference)
        self.assertEqual([row[1] for row in restarts.rows(self.folder, "short-2dp")], [row[1] for row in reference])
        self.assertIn(f"step {restarts.HALF}, {tokens[restarts.HALF]} tokens", self.out)

    def test_a_token_outside_the_vocabulary(self):
        write_pair(self.folder / "bad", [*lines(4, 50), [300] * 9])
        self.refused("bad", "bad.bin, token ", "data.format=megatron", "data.path=bad", "data.split=0")


if __name__ == "__main__":
    unittest.main()
