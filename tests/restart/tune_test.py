# SPDX-License-Identifier: Apache-2.0
"""Runs that begin with a file (checkpoint.resume=FILE): stopped, the same command goes on from their own newest
checkpoint."""
import pathlib
import shutil
import tempfile
import unittest

import restarts
from restarts import checkpoint

BASE = ("run.precision=fp64", "batch.global=2", "checkpoint.every=2")
STEPS = "run.steps=8"
STOP = "usr1:write:metrics.csv:2"  # a signal while the second row is written: the next step is the last one


@unittest.skipUnless(restarts.SHIM, "needs the library that sends signals at chosen calls")
class Tune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="p3d-tune-")
        cls.folder = pathlib.Path(cls.temporary.name)
        restarts.write_inputs(cls.folder)
        cls.train("run.output_dir=first", "run.steps=4")
        cls.file = checkpoint("first", 4)
        (cls.folder / "other.txt").write_text("other words, " * 100)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def train(cls, *keys, code=0, rules=""):
        found, out, err = restarts.run(cls.folder, 0, *BASE, *keys, rules=rules)
        if found != code:
            raise AssertionError(f"{keys}: exit code {found}\n{out}{err}")
        return out + err

    def goes_on(self, name, begins, *keys):
        """Stopped in the middle and continued by the same command: the rows of a run that was not stopped."""
        self.assertIn(begins, self.train(f"run.output_dir={name}-whole", *keys))
        whole = restarts.rows(self.folder, f"{name}-whole")
        out = self.train(f"run.output_dir={name}", *keys, code=75, rules=STOP)
        self.assertIn(begins, out)
        self.assertIn("exit code 75): the same command goes on from here", out)
        stopped = len(restarts.rows(self.folder, name))
        self.assertLess(stopped, len(whole))
        self.assertIn(f"Resumed from {self.folder / name}", self.train(f"run.output_dir={name}", *keys))
        self.assertEqual(restarts.rows(self.folder, name), whole)

    def test_weights(self):
        tune = (f"checkpoint.resume={self.file}", "checkpoint.load=weights", "data.path=other.txt", STEPS)
        self.goes_on("tuned", "Weights loaded from", *tune)
        # A run of its own is not taken for this one, and neither is one that began with other weights.
        shutil.copytree(self.folder / "first", self.folder / "mixed")
        out = self.train("run.output_dir=mixed", *tune, code=2)
        self.assertIn("of a run that began with weights of its own", out)
        (self.folder / checkpoint("first", 2)).replace(self.folder / "older.h5")
        out = self.train("run.output_dir=tuned", "checkpoint.resume=older.h5", *tune[1:], code=2)
        self.assertRegex(out, r"began with the weights [0-9a-f]{16} of \S+/restart-00000004.h5 \(step 4\)")
        # The origin is the content, not the name; "auto" goes on too, and hands the origin on.
        shutil.copy(self.folder / self.file, self.folder / "copy.h5")
        self.assertIn("Resumed from", self.train("run.output_dir=tuned", "data.path=other.txt", "run.steps=10"))
        out = self.train("run.output_dir=tuned", "checkpoint.resume=copy.h5", *tune[1:3], "run.steps=12")
        self.assertIn("step 10,", out)

    def test_everything(self):
        self.goes_on("continued", "Resumed from", f"checkpoint.resume={self.file}", "checkpoint.load=all", STEPS)

    def test_none_says_how_to_go_on(self):
        out = self.train("run.output_dir=none", "checkpoint.resume=none", code=75, rules=STOP)
        self.assertIn("exit code 75): the same command with checkpoint.resume=auto goes on from here", out)
        out = self.train("run.output_dir=none", "checkpoint.resume=none", code=2)
        self.assertIn("checkpoint.resume = \"auto\"", out)

    def test_a_checkpoint_of_step_0(self):
        keys = ("run.output_dir=zero", "checkpoint.at_start=true", "checkpoint.keep=0")
        self.train(*keys, "run.steps=2")
        self.assertEqual(sorted(p.name for p in (self.folder / "zero/checkpoints").iterdir()),
                         ["restart-00000000.h5", "restart-00000002.h5"])
        code, out, _ = restarts.tool(self.folder, "checkpoint", "show", checkpoint("zero", 0))
        self.assertEqual(code, 0)
        self.assertRegex(out, r"step +0\n")
        self.assertRegex(out, r"next sample +0\n")
        first = restarts.rows(self.folder, "zero")
        (self.folder / checkpoint("zero", 2)).unlink()
        self.assertIn("00000000.h5: step 0,", self.train(*keys, "run.steps=2"))
        self.assertEqual(restarts.rows(self.folder, "zero"), first)
        out = self.train("run.output_dir=never", "checkpoint.at_start=true", "checkpoint.every=0", code=2)
        self.assertIn("checkpoint.every = 0", out)


if __name__ == "__main__":
    unittest.main()
