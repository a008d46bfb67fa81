# SPDX-License-Identifier: Apache-2.0
"""Runs p3d on several hosts (hosts.py) and reads what it leaves."""
import csv
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import hosts

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


class Run:
    """One start of p3d on hosts, or on this machine (`cluster` None) as one process."""

    def __init__(self, cluster, folder, name, arguments, placement="h0:2,h1:2", environment=None, ranks=4):
        self.name, self.out_path, self.err_path = name, folder / f"{name}.out", folder / f"{name}.err"
        self.results = folder / "runs" / name
        launcher = cluster.mpiexec(os.environ["P3D_MPIEXEC"], ranks, placement) if cluster else []
        command = [*launcher, os.environ["P3D_PROGRAM"], "input.toml", f"run.name={name}", *arguments]
        self.started = time.monotonic()
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env=os.environ | (environment or {}))

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    @property
    def code(self):
        return self.process.returncode

    @property
    def text(self):
        return f"{self.name}: exit code {self.code}\n{self.out}\n{self.err}"

    def rows(self):
        try:
            with open(self.results / "metrics.csv", newline="") as file:
                return list(csv.DictReader(file))
        except FileNotFoundError:
            return []

    def numbers(self):
        """What must not depend on how the ranks are placed."""
        return [tuple(float(row[c] or "nan") for c in ("loss", "grad_norm", "lr", "eval_loss")) for row in self.rows()]

    def wait_until(self, condition, what):
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended before {what}\n{self.text}")
            if time.monotonic() - self.started > PATIENCE:
                raise AssertionError(f"no {what} in {PATIENCE} s\n{self.text}")
            time.sleep(0.02)

    def finish(self):
        """Waits for the end; returns the seconds since this call."""
        begin = time.monotonic()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {PATIENCE} s\n{self.text}") from None
        return time.monotonic() - begin

    def kill(self):
        self.process.kill()
        self.process.wait()


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
