# SPDX-License-Identifier: Apache-2.0
"""What a run finds of itself and of others: checkpoints and files of another history, of another run in the same
folder, and starts with nothing to do. Ends of a run between two steps: time that is up in a validation, a log without
a reader."""
import pathlib
import re
import subprocess
import tempfile
import unittest

import restarts
from restarts import losses, program, tool

# One rank, a step of little work.
SMALL = ("input.toml", "model.layers=1", "batch.global=4", "run.ceiling=false", "data.format=synthetic", "data.path=[]")


class Histories(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-history-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def run_named(self, name, *words, code=0):
        found, out, err = tool(self.folder, *SMALL, f"run.name={name}", *words)
        self.assertEqual(found, code, out + err)
        return out + err

    def files(self, name):
        return sorted(int(path.stem.split("-")[-1]) for path in (self.folder / f"runs/{name}/checkpoints").iterdir())

    def test_the_file_that_a_command_names_is_not_deleted(self):
        self.run_named("long", "run.steps=2", "checkpoint.every=2")
        command = ("run.steps=8", "checkpoint.every=2", "checkpoint.keep=1",
                   "checkpoint.resume=runs/long/checkpoints/long-00000002.h5")
        self.run_named("long", *command)
        self.assertEqual(self.files("long"), [2, 8])
        self.assertIn("No step is left", self.run_named("long", *command))
        self.run_named("long", *command, "run.steps=10")
        self.assertEqual(self.files("long"), [2, 10])

    def test_checkpoints_of_another_history_are_not_deleted(self):
        self.run_named("a", "run.steps=6", "checkpoint.every=2")
        self.run_named("b", "run.steps=4", "checkpoint.every=2", "optimizer.lr=1e-4")
        said = self.run_named("b", "run.steps=12", "checkpoint.every=2", "checkpoint.keep=1",
                              "checkpoint.resume=runs/a/checkpoints/a-00000006.h5", code=2)
        self.assertRegex(said, r'no checkpoint of "b" but those of a run that began with the state of \S*runs/a/')
        self.assertEqual(self.files("b"), [2, 4])

    def test_a_run_that_writes_no_checkpoints_names_those_that_are_there(self):
        self.run_named("x", "run.steps=4", "checkpoint.every=2")
        said = self.run_named("x", "run.steps=6", "checkpoint.every=0")
        found = re.search(r'2 checkpoints of this run in \S+ are not read; the run starts at step 0. '
                          r'checkpoint.resume = "(\S+)" goes on from the newest', said)
        self.assertIsNotNone(found, said)
        from_zero = losses(self.folder, "runs/x")
        self.run_named("x", "run.steps=6", "checkpoint.every=0", f"checkpoint.resume={found[1]}")
        self.assertEqual(losses(self.folder, "runs/x"), from_zero)
        self.assertNotIn("not read", self.run_named("y", "run.steps=1", "checkpoint.every=0"))

    def test_rows_of_another_run_are_not_taken_over(self):
        shared = ("run.output_dir=both", "checkpoint.every=2", "checkpoint.dir=files")
        self.run_named("x", *shared, "run.steps=4")
        of_x = losses(self.folder, "both")
        self.run_named("y", *shared, "run.steps=4", "run.seed=3")
        self.assertNotEqual(losses(self.folder, "both"), of_x)
        said = self.run_named("x", *shared, "run.steps=6")
        self.assertIn('is of the run "y": the rows of the 4 steps of "x" before this start are not there', said)
        self.assertEqual([step for step, _ in losses(self.folder, "both")], [5, 6])

    def test_the_written_input_is_that_of_the_steps(self):
        self.run_named("done", "run.steps=2", "checkpoint.every=2")
        resolved = self.folder / "runs/done/resolved.toml"
        before = resolved.read_text()
        said = self.run_named("done", "run.steps=2", "checkpoint.every=2", "optimizer.lr=9.0")
        self.assertIn("No step is left", said)
        self.assertEqual(resolved.read_text(), before)
        self.run_named("done", "run.steps=3", "checkpoint.every=2", "optimizer.lr=1e-5")
        self.assertNotEqual(resolved.read_text(), before)

    def test_time_is_looked_at_in_a_validation(self):
        words = ("run.steps=2", "run.time_limit=2s", 'checkpoint.every="end"', "run.eval_batches=100000000",
                 "data.split=0.5")
        for _ in range(2):  # the second start has the validation alone to do
            said = self.run_named("valid", *words, code=75)
            self.assertIn("Stopped by a signal or run.time_limit after step 2 of 2", said)
            self.assertEqual(self.files("valid"), [2])

    def test_a_validation_that_reads_its_split_again_and_again_is_named(self):
        words = ("run.steps=1", "checkpoint.every=0", "data.format=text", "data.path=text.txt", "data.split=0.01")
        said = self.run_named("again", *words, "run.eval_batches=200")
        self.assertRegex(said, r"run.eval_batches = 200 reads each of \d+ validation windows \d+ times; "
                               r"run.eval_batches = \d+ reads each once")
        self.assertNotIn("reads each once", self.run_named("once", *words, "run.eval_batches=1"))

    def test_a_run_outlives_the_reader_of_its_log(self):
        run = subprocess.Popen([program.PROGRAM, *SMALL, "run.name=piped", "run.steps=20", "run.log_every=1",
                                "checkpoint.every=20"], cwd=self.folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        run.stdout.readline()
        run.stdout.close()
        error = run.stderr.read()
        run.stderr.close()
        self.assertIn(run.wait(timeout=program.PATIENCE), (0, 1), error)
        self.assertEqual(self.files("piped"), [20])


if __name__ == "__main__":
    unittest.main()
