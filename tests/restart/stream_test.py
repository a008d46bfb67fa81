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
    keys, ranks = KEYS, 2

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-stream-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def train(self, output, flush, *more):
        return restarts.train_with(self.folder, self.ranks, *self.keys, f"run.output_dir={output}",
                                   f"pipeline.flush={flush}", *more)

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
        words = ["input.toml", *self.keys, "pipeline.flush=never", "run.output_dir=run", "run.steps=1000000",
                 "checkpoint.every=1000000"]
        run = program.Run(self.ranks, words, self.folder)
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
                words = [*self.keys, "optimizer.lr=1e30", "run.steps=8", f"checkpoint.every={every}",
                         f"run.output_dir={output}", f"pipeline.flush={flush}"]
                done = subprocess.run([*program.MPIEXEC, str(self.ranks), program.PROGRAM, "input.toml", *words],
                                      cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      timeout=300)
                self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
                rows[flush] = self.history(output), re.search(r"at step (\d+)", done.stdout + done.stderr)[1]
            self.assertEqual(rows["never"], rows["always"], every)

    def test_timers_are_those_of_their_steps(self):
        self.train("timed", "never", "run.steps=5", "timers.level=1", "run.log_every=1", "checkpoint.every=0")
        with open(self.folder / "timed/timers.csv", newline="", encoding="utf-8") as file:
            calls = {int(row["step"]): row["calls"] for row in csv.DictReader(file) if row["timer"] == "step"}
        self.assertEqual(calls, {step: "1" for step in range(1, 6)})


class PipeDreams(Streams):
    """The same with delays by stage, where a rank is up to two steps ahead."""
    keys = ("run.precision=fp64", "parallel.pp=3", "model.layers=3", "model.tied_embeddings=false",
            "pipeline.schedule=pipedream", "optimizer.grad_clip=0", "batch.micro=4", "batch.global=4",
            "optimizer.lr_schedule=constant", "optimizer.warmup_steps=0", "data.split=0.2")
    ranks = 3

    def test_a_layout_goes_on_with_the_delays_of_another(self):
        self.train("straight", "never", "run.steps=9", "checkpoint.every=0")
        self.train("run", "never", "run.steps=5", "checkpoint.every=end")
        one = [key for key in self.keys if not key.startswith(("parallel.pp", "pipeline.schedule"))]
        said = restarts.train_with(self.folder, 1, *one, "pipeline.delays=[2,1,0]", "run.output_dir=run", "run.steps=9")
        self.assertNotIn("updates by which gradients are late", said)
        straight, run = ([float(row["loss"]) for row in self.history(output)] for output in ("straight", "run"))
        self.assertEqual(len(run), 9)
        for expected, found in zip(straight, run):
            self.assertAlmostEqual(found, expected, delta=1e-12 * expected)

    def test_other_delays_begin_with_the_newest_weights(self):
        self.train("run", "never", "run.steps=5", "checkpoint.every=end")
        one = [key for key in self.keys if not key.startswith(("parallel.pp", "pipeline.schedule"))]

        def losses(output, delays):
            file = next(self.folder.glob("run/**/*5.h5"))
            said = restarts.train_with(self.folder, 1, *one, f"pipeline.delays={delays}", f"run.output_dir={output}",
                                       "run.steps=9", f"checkpoint.resume={file}")
            return said, [row["loss"] for row in self.history(output)]
        said, changed = losses("changed", "[2,2,0]")
        self.assertIn("updates by which gradients are late (pipeline.delays): [2, 2, 0] in the input", said)
        # One version is there, so that the first step of the run is that of no delay.
        none = losses("none", "[0,0,0]")[1]
        self.assertEqual(changed[0], none[0])
        self.assertNotEqual(changed[1], none[1])

    def test_a_stop_soon_after_a_start_from_one_version_changes_no_bit(self):
        keys = ("run.precision=bf16", "precision.stochastic_rounding=true", "model.layers=3", "batch.global=4",
                "model.tied_embeddings=false", "optimizer.lr_schedule=constant", "optimizer.warmup_steps=0",
                "checkpoint.every=1", "checkpoint.keep=0")
        restarts.train_with(self.folder, 1, *keys, "run.output_dir=start", "run.steps=3")
        late = (*keys, "pipeline.delays=[3,1,0]", f"checkpoint.resume={next(self.folder.glob('start/**/*3.h5'))}")
        for output, stops in {"straight": (), "stopped": (4, 5, 6)}.items():
            for steps in (*stops, 9):
                restarts.train_with(self.folder, 1, *late, f"run.output_dir={output}", f"run.steps={steps}")
        self.assertEqual(self.history("stopped"), self.history("straight"))


if __name__ == "__main__":
    unittest.main()
