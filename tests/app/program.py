# SPDX-License-Identifier: Apache-2.0
"""Starts p3d on some ranks, watches its processes, and keeps what it printed."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import started  # noqa: E402

PROGRAM = pathlib.Path(os.environ["P3D_PROGRAM"])
MPIEXEC = os.environ["P3D_MPIEXEC"].split()  # ends with the option for the number of ranks
SOURCE = pathlib.Path(os.environ["P3D_SOURCE"])
IS_HYDRA = "HYDRA" in subprocess.run([MPIEXEC[0], "--version"], stdout=subprocess.PIPE, text=True).stdout.upper()
PATIENCE = 120  # seconds; a run that needs longer for anything hangs

MODEL = """
[run]
name = "app"
steps = 6
log_every = 2
[model]
hidden = 16
layers = 4
heads = 4
kv_heads = 2
ffn = 32
seq_len = 16
norm = "rmsnorm"
position = "rope"
activation = "swiglu"
bias = false
[batch]
micro = 1
microbatches = 4
[data]
path = "text.txt"
[comm]
timeout_s = 60
"""


def processes():
    """{process: (parent, name, state)} of everything that runs."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            name = text[text.index("(") + 1:text.rindex(")")]
            state, parent = text[text.rindex(")") + 2:].split()[:2]
            found[int(entry)] = (int(parent), name, state)
    return found


def rank_of(process):
    """The rank that the launcher gave a process, or None when it has none (any more)."""
    try:
        environment = pathlib.Path("/proc", str(process), "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for item in environment:
        name, _, value = item.partition(b"=")
        if name in (b"PMI_RANK", b"PMIX_RANK", b"OMPI_COMM_WORLD_RANK"):
            return int(value)
    return None


class Run(started.Started):
    """One start of p3d. `ranks` 0: without a launcher; `wrapper`: a script that starts p3d."""

    def __init__(self, ranks, arguments, folder, wrapper=PROGRAM):
        launcher = [*MPIEXEC, str(ranks)] if ranks else []
        super().__init__([*launcher, wrapper, *arguments], pathlib.Path(folder), "run", PATIENCE,
                         start_new_session=True)
        self.ranks = {}

    def find_ranks(self):
        """Fills {rank: process}."""
        todo, table = [self.process.pid], processes()
        while todo:
            above = todo.pop()
            below = [p for p, (parent, _, _) in table.items() if parent == above]
            todo += below
            self.ranks.update({rank_of(p): p for p in below if table[p][1] == PROGRAM.name[:15]})
        return self.ranks

    def alive(self):
        table = processes()
        return [p for p in self.ranks.values() if p in table and table[p][2] not in "ZX"]

    def finish(self):
        """Waits for the end of the launcher and of all known ranks; returns the seconds since this call."""
        begin = time.monotonic()
        while self.process.poll() is None or self.alive():
            if time.monotonic() - begin > PATIENCE:
                raise AssertionError(f"processes {self.alive()} still there after {PATIENCE} s\n{self.text}")
            time.sleep(0.01)
        return time.monotonic() - begin

    def kill(self):
        for process in self.alive():
            os.kill(process, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class AppTest(unittest.TestCase):
    """A folder with an input and a text for each test; no process outlives it."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-app-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.results = self.folder / "runs" / "app"
        (self.folder / "input.toml").write_text(MODEL)
        (self.folder / "text.txt").write_text("".join(f"line {i} is not line {i * i % 97}\n" for i in range(200)))

    def start(self, ranks, *arguments):
        run = Run(ranks, ["input.toml", *arguments], self.folder)
        self.addCleanup(run.kill)
        return run

    def run_to_end(self, ranks, *arguments):
        run = self.start(ranks, *arguments)
        run.seconds = run.finish()
        return run

    def start_training(self, ranks, *arguments, steps=3):
        """A run without end that has done some steps; its ranks are known."""
        run = self.start(ranks, "run.steps=1000000", "run.log_every=1000000", *arguments)
        run.wait_until(lambda: len(self.metrics()) >= steps, "the first steps")
        self.assertEqual(sorted(run.find_ranks()), list(range(ranks)))
        return run

    def metrics(self, name="metrics.csv"):
        return started.rows(self.results / name)

    def assert_once(self, text, inside):
        self.assertEqual(inside.count(text), 1, f'"{text}" should be there once:\n{inside}')

    def report(self, case, run, seconds):
        """A line of the table of failures, for ctest --verbose."""
        print(f"\n  measured: {case}: exit code {run.code}, all ranks gone after {seconds:.2f} s", flush=True)
