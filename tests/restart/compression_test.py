# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients (comm.compress): what workers remember is in the checkpoint, so a run that goes on, on another
number of replicas, has the history of one that never stopped. Another number of workers may go on too."""
import csv
import pathlib
import tempfile
import unittest

import restarts

KEYS = ("comm.workers=4", "batch.global=4", "optimizer.lr_schedule=constant", "optimizer.warmup_steps=0",
        "model.tied_embeddings=false", "data.split=0.2", "optimizer.grad_clip=0")
KINDS = {"int8": ("comm.compress=int8",), "topk": ("comm.compress=topk", "comm.topk=0.1"),
         "powersgd": ("comm.compress=powersgd", "comm.powersgd_rank=2")}


class Compression(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-compression-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def train(self, ranks, output, *more):
        return restarts.train_with(self.folder, ranks, *KEYS, f"run.output_dir={output}", "checkpoint.every=end", *more)

    def losses(self, output):
        with open(self.folder / output / "metrics.csv", newline="", encoding="utf-8") as file:
            return [row["loss"] for row in csv.DictReader(file)]

    def test_goes_on_with_other_replicas(self):
        for name, keys in KINDS.items():
            keys = (*keys, "run.precision=fp64")
            with self.subTest(kind=name):
                said = self.train(2, f"{name}-straight", *keys, "parallel.dp=2", "run.steps=8")
                self.assertIn("Gradients of 4 workers are compressed to", said)
                straight = [float(loss) for loss in self.losses(f"{name}-straight")]
                for first, then in (("parallel.dp=2", "parallel.dp=4"), ("parallel.tp=2", "parallel.dp=1"),
                                    ("parallel.pp=2", "parallel.dp=2")):
                    output = f"{name}-{first}-{then}"
                    self.train(2, output, *keys, first, "run.steps=4")
                    self.train(int(then[-1]), output, *keys, then, "run.steps=8")
                    for found, expected in zip(self.losses(output), straight, strict=True):
                        self.assertLess(abs(float(found) - expected), 1e-11 * expected)

    def test_goes_on_bit_for_bit(self):
        for name in ("int8", "topk"):
            keys = (*KINDS[name], "run.precision=fp32")
            self.train(1, f"{name}-straight", *keys, "run.steps=6")
            self.train(1, f"{name}-stopped", *keys, "run.steps=3")
            self.train(1, f"{name}-stopped", *keys, "run.steps=6")
            self.assertEqual(self.losses(f"{name}-stopped"), self.losses(f"{name}-straight"), name)

    def test_other_workers_go_on(self):
        for name, keys in KINDS.items():
            keys = (*keys, "run.precision=fp32", "batch.micro=1", "batch.global=8")
            with self.subTest(kind=name):
                self.train(2, name, *keys, "parallel.dp=2", "run.steps=4")
                said = self.train(4, name, *keys, "parallel.dp=4", "comm.workers=8", "run.steps=6")
                self.assertIn("comm.workers: 4 in the checkpoint, 8 in the input", said)
                self.assertEqual(len(self.losses(name)), 6)
                newest = sorted((self.folder / name / "checkpoints").glob("*.h5"))[-1]
                shown = restarts.tool(self.folder, "checkpoint", "show", newest)[1]
                if name != "int8":
                    self.assertIn("workers       8, and what each of them remembers", shown)
                # A run without compression takes it too.
                plain = [key for key in keys if not key.startswith("comm.")]
                words = [key for key in KEYS if not key.startswith("comm.")]
                said = restarts.train_with(self.folder, 2, *words, *plain, "parallel.dp=2", f"run.output_dir={name}",
                                           "checkpoint.every=end", "run.steps=8")
                self.assertIn("Resumed from", said)
                self.assertEqual(len(self.losses(name)), 8)


if __name__ == "__main__":
    unittest.main()
