# SPDX-License-Identifier: Apache-2.0
"""Runs p3d on several hosts (hosts.py) and reads what it leaves."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import hosts  # noqa: E402
import started  # noqa: E402

PATIENCE = 100  # seconds; a run that needs longer for anything hangs

MODEL = """
[run]
name = "nodes"
steps = 3
precision = "fp64"
seed = 5
eval_every = 2
[model]
vocab_size = 256
hidden = 32
layers = 4
heads = 4
kv_heads = 4
ffn = 64
seq_len = 16
norm = "rmsnorm"
position = "rope"
activation = "swiglu"
bias = false
dropout = 0.1
[batch]
micro = 1
global = 8
[data]
path = "text.txt"
[comm]
timeout_s = 60
"""
TEXT = "".join(f"line {i} is not line {i * i % 97}\n" for i in range(200))


class Run(started.Started):
    """One start of p3d on hosts, or on this machine (`cluster` None) as one process."""

    def __init__(self, cluster, folder, name, arguments, placement="h0:2,h1:2", environment=None, ranks=4):
        self.name, self.results = name, folder / "runs" / name
        launcher = cluster.mpiexec(os.environ["P3D_MPIEXEC"], ranks, placement) if cluster else []
        super().__init__([*launcher, os.environ["P3D_PROGRAM"], "input.toml", f"run.name={name}", *arguments], folder,
                         name, PATIENCE, env=os.environ | (environment or {}))

    def rows(self):
        return started.rows(self.results / "metrics.csv")

    def numbers(self):
        """What must not depend on how the ranks are placed."""
        return [tuple(float(row[c] or "nan") for c in ("loss", "grad_norm", "lr", "eval_loss")) for row in self.rows()]

    def finish(self):
        """Waits for the end; returns the seconds since this call."""
        begin = time.monotonic()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {PATIENCE} s\n{self.text}") from None
        return time.monotonic() - begin


class NodesTest(unittest.TestCase):
    """A folder with an input and a text for each test, which all hosts see."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-nodes-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "input.toml").write_text(MODEL)
        (self.folder / "text.txt").write_text(TEXT)
        self.count = 0

    def cluster(self, *options):
        """Two hosts, or as many as there are options."""
        cluster = hosts.Hosts(*(options or ({}, {})))
        self.addCleanup(cluster.__exit__)
        return cluster.__enter__()

    def start(self, cluster, *arguments, **options):
        self.count += 1
        run = Run(cluster, self.folder, options.pop("name", f"run{self.count}"), arguments, **options)
        self.addCleanup(run.kill)
        return run

    def run_to_end(self, cluster, *arguments, code=0, **options):
        run = self.start(cluster, *arguments, **options)
        run.seconds = run.finish()
        self.assertEqual(run.code, code, run.text)
        if cluster:
            self.assert_nobody_left(cluster)
        return run

    def assert_nobody_left(self, cluster, seconds=20):
        end = time.monotonic() + seconds
        while cluster.left() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(cluster.left(), {}, "processes that nobody ended")

    def assert_equal_numbers(self, run, expected, tolerance=0.0):
        """`expected`: what numbers() gave. `tolerance` is relative; 0: equal bits."""
        numbers = run.numbers()
        self.assertEqual(len(numbers), len(expected), run.text)
        for step, (found, wanted) in enumerate(zip(numbers, expected), 1):
            for a, b in zip(found, wanted):
                self.assertTrue(a == b or a != a and b != b or abs(a - b) <= tolerance * abs(b),
                                f"step {step}: {a!r} is not {b!r}\n{run.text}")


def main():
    hosts.enter_room(os.environ["P3D_MPIEXEC"])
    unittest.main(verbosity=2)
