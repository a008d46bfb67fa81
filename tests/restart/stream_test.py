# SPDX-License-Identifier: Apache-2.0
"""Runs whose pipeline does not empty between steps (pipeline.flush): whatever comes between steps, their history and
their checkpoints are those of runs with a flush behind each step."""
import csv
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

import restarts
from restarts import program

KEYS = ("run.precision=fp64", "parallel.pp=2", "optimizer.delay=1", "batch.global=4", "optimizer.lr_schedule=constant",
        "optimizer.warmup_steps=0", "data.split=0.2")


class Streams(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-stream-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def train(self, output, flush, *more):
        return restarts.train_with(self.folder, 2, *KEYS, f"run.output_dir={output}", f"pipeline.flush={flush}", *more)

    def history(self, output):
        """The rows of metrics.csv without times."""
        with open(self.folder / output / "metrics.csv", newline="", encoding="utf-8") as file:
            return [{key: value for key, value in row.items() if key not in ("step_ms", "tokens_per_s")}
                    for row in csv.DictReader(file)]

    def test_history_is_that_of_flushes(self):
        for name, keys in {"plain": (), "eval": ("run.eval_every=3", "run.eval_batches=1"),
                           "saved": ("checkpoint.every=3", "checkpoint.keep=0"),
                           "clock": ("checkpoint.every=1s",)}.items():
            with self.subTest(run=name):
                runs = {flush: self.train(f"{name}-{flush}", flush, "run.steps=8", "checkpoint.every=end", *keys)
                        for flush in ("always", "never")}
                self.assertIn("no flush between steps", runs["never"])
                self.assertNotIn("no flush between steps", runs["always"])
                expected = self.history(f"{name}-always")
                self.assertEqual([row["step"] for row in expected], [str(step) for step in range(1, 9)])
                self.assertEqual(self.history(f"{name}-never"), expected)

    def test_goes_on_from_any_checkpoint(self):
        self.train("straight", "always", "run.steps=9", "checkpoint.every=0")
        straight = self.history("straight")
        for first, then in (("never", "always"), ("always", "never"), ("never", "never")):
            output = f"{first}-{then}"
            self.train(output, first, "run.steps=5", "checkpoint.every=end")
            self.train(output, then, "run.steps=9", "checkpoint.every=end")
            self.assertEqual(self.history(output), straight, output)

    def test_a_signal_stops_after_the_step_under_way(self):
        words = ["input.toml", *KEYS, "pipeline.flush=never", "run.output_dir=run", "run.steps=1000000",
                 "checkpoint.every=1000000"]
        run = program.Run(2, words, self.folder)
        self.addCleanup(run.kill)
        run.wait_until(lambda: (self.folder / "run/metrics.csv").exists()
                       and len(restarts.losses(self.folder, "run")) > 5, "step 5")
        run.find_ranks()
        os.kill(run.ranks[1], signal.SIGTERM)
        run.finish()
        self.assertEqual(run.code, 75, run.out + run.err)
        stopped = self.history("run")
        last = int(stopped[-1]["step"])
        self.assertRegex(run.out, rf"(?s)Checkpoint of step {last}: .*exit code 75")
        self.assertEqual([int(row["step"]) for row in stopped], list(range(1, last + 1)))
        self.train("run", "never", f"run.steps={last + 3}", "checkpoint.every=1000000")
        self.train("straight", "always", f"run.steps={last + 3}", "checkpoint.every=0")
        self.assertEqual(self.history("run"), self.history("straight"))

    def test_steps_before_one_that_fails_have_their_rows(self):
        for every in ("0", "2", "3", "4"):
            rows = {}
            for flush in ("always", "never"):
                output = f"fails-{every}-{flush}"
                words = [*KEYS, "optimizer.lr=1e30", "run.steps=8", f"checkpoint.every={every}",
                         f"run.output_dir={output}", f"pipeline.flush={flush}"]
                done = subprocess.run([*program.MPIEXEC, "2", program.PROGRAM, "input.toml", *words], cwd=self.folder,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
                rows[flush] = self.history(output), re.search(r"at step (\d+)", done.stdout + done.stderr)[1]
            self.assertEqual(rows["never"], rows["always"], every)

    def test_timers_are_those_of_their_steps(self):
        self.train("timed", "never", "run.steps=5", "timers.level=1", "run.log_every=1", "checkpoint.every=0")
        with open(self.folder / "timed/timers.csv", newline="", encoding="utf-8") as file:
            calls = {int(row["step"]): row["calls"] for row in csv.DictReader(file) if row["timer"] == "step"}
        self.assertEqual(calls, {step: "1" for step in range(1, 6)})


if __name__ == "__main__":
    unittest.main()
