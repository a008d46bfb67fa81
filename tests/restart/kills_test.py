# SPDX-License-Identifier: Apache-2.0
"""Kills a run at chosen calls on its files and starts it again, until it ends: no valid checkpoint is ever lost, no
damaged one has a final name, and metrics.csv has the row of every step once, with the bits of a run that nothing
disturbed.

The library in P3D_FILE_SHIM kills, so each run ends at the same place every time. storm.py is the form with random
moments."""
import pathlib
import tempfile
import unittest

import restarts

KEYS = ("run.precision=fp64", "run.steps=10", "checkpoint.every=2", "checkpoint.keep=2", "run.eval_every=3",
        "run.eval_batches=1", "batch.global=2", "data.split=0.1")
# One after the other in one folder. Steps 2, 4, ... get a checkpoint, steps 3, 6, ... an evaluation.
KILLS = (
    "kill:write:metrics.csv:1",             # the first row
    "kill:open:restart-00000002.h5.part:1",  # before there is a checkpoint
    "kill:write:restart-00000002.h5.part:3",
    "tear:write:metrics.csv:4",             # half a row: step 4, after the checkpoint of step 2 was begun
    "kill:fsync:metrics.csv:1",             # the history of the last run is copied
    "kill:fsync:metrics.csv:2",             # the row is written, the checkpoint not yet
    "kill:rename:restart-00000004.h5:1",    # complete, but without its name
    "kill:rename:metrics.csv:1",            # the history of the last run is about to be replaced
    "kill:unlink:restart-00000002.h5:1",    # an old one is about to be deleted
    "kill:open:metrics.csv:1",              # the history was replaced
    "kill:write:restart-00000008.h5.part:2",
    "tear:write:metrics.csv:2",
)


@unittest.skipUnless(restarts.SHIM, "needs the library that kills at chosen calls")
class Kills(unittest.TestCase):
    def check(self, ranks, kills, *more):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-kills-")
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        restarts.write_inputs(folder)
        keys = (*KEYS, f"parallel.dp={max(1, ranks)}", *more)
        self.assertEqual(restarts.run(folder, ranks, *keys, "run.output_dir=straight", "checkpoint.every=0")[0], 0)
        reference = restarts.rows(folder, "straight")
        newest = 0
        for kill in kills:
            code, out, err = restarts.run(folder, ranks, *keys, "run.output_dir=run", rules=kill,
                                          rank=0 if ranks else None)
            self.assertNotIn(code, (0, 1, 2, 3, 5, 75), f"{kill}: not killed\n{out}{err}")
            self.assertNotIn("skipping", err, kill)
            self.assertNotIn("lacks the rows", err, kill)
            names = sorted(p.name for p in (folder / "run" / "checkpoints").glob("*.h5"))
            if names:
                code, text, _ = restarts.tool(folder, "checkpoint", "verify", *(f"run/checkpoints/{n}" for n in names))
                self.assertEqual(code, 0, text)
            last = int(names[-1][8:16]) if names else 0
            self.assertGreaterEqual(last, newest, kill)
            newest = last
            history = folder / "run" / "metrics.csv"
            lines = history.read_text().split("\n")[1:-1] if history.exists() else []
            # A checkpoint that is valid has the rows of all its steps in the history.
            self.assertEqual([int(line.split(",")[0]) for line in lines[:newest]], list(range(1, newest + 1)), kill)
        code, out, err = restarts.run(folder, ranks, *keys, "run.output_dir=run")
        self.assertEqual((code, err), (0, ""), out)
        self.assertEqual(restarts.rows(folder, "run"), reference)
        left = [p.name for p in (folder / "run" / "checkpoints").iterdir()]
        self.assertEqual(sorted(left), ["restart-00000008.h5", "restart-00000010.h5"])

    def test_while_training_goes_on(self):
        self.check(0, KILLS)

    def test_without_a_copy(self):
        self.check(0, KILLS[3:8], "checkpoint.async=false")

    def test_when_a_checkpoint_has_just_got_its_name(self):
        # The fifth flush of a file in the folder, or of the folder: lock, data, descriptions, seal, name.
        self.check(0, ["kill:fsync:run/checkpoints:5"], "checkpoint.async=false")

    def test_two_ranks(self):
        self.check(2, KILLS[2:6:3])


if __name__ == "__main__":
    unittest.main()
