# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be written while a run goes on: the error is told once, and what can be saved is saved."""
import json
import pathlib
import resource
import shutil
import signal
import tempfile
import time
import unittest

import restarts
from restarts import checkpoint

KEYS = ("run.output_dir=run", "checkpoint.every=4", "run.steps=8", "batch.global=2")


@unittest.skipUnless(restarts.SHIM, "needs the library that fails at chosen calls")
class WriteErrors(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-errors-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def verified(self, *steps):
        names = sorted(p.name for p in (self.folder / "run/checkpoints").iterdir())
        self.assertEqual(names, [f"restart-{step:08d}.h5" for step in steps])
        for step in steps:
            self.assertEqual(restarts.tool(self.folder, "checkpoint", "verify", checkpoint("run", step))[0], 0)

    def test_no_room_for_the_history(self):
        code, out, err = restarts.run(self.folder, 2, *KEYS, "parallel.tp=2", rules="full:write:metrics.csv:0")
        self.assertEqual(code, 1, out + err)
        self.assertEqual(err.count("no row of step 1 in the history; the run goes on"), 1)
        self.assertEqual(err.count("p3d stops:\nrows of the run's history are missing"), 1)
        self.assertRegex(err, "found: +No space left on device")
        self.verified(4, 8)

    def test_no_room_for_a_while(self):
        rules = ";".join(f"full:write:metrics.csv:{n}" for n in (3, 4))
        code, out, err = restarts.run(self.folder, 0, *KEYS, rules=rules)
        self.assertEqual(code, 0, out + err)
        self.assertIn("metrics.csv can be written again; no row is missing", err)
        self.assertEqual([row[0] for row in restarts.rows(self.folder, "run")], [str(n) for n in range(1, 9)])

    def test_a_deleted_folder(self):
        run = restarts.start(self.folder, 0, *KEYS, "run.steps=1000000", "checkpoint.every=1000000")
        self.addCleanup(lambda: (run.kill(), run.wait()))
        deadline = time.monotonic() + restarts.program.PATIENCE
        while not (self.folder / "run/metrics.csv").exists() or len(restarts.rows(self.folder, "run")) < 3:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        shutil.rmtree(self.folder / "run")
        run.send_signal(signal.SIGUSR1)
        code, out, err = restarts.finish(run)
        self.assertEqual(code, 75, out + err)  # stopped, not done
        self.assertIn("No such file or directory", err)
        self.assertIn("rows of the run's history are missing", err)
        step = int(out.split("Stopped by a signal or run.time_limit after step ")[1].split()[0])
        self.verified(step)

    def test_a_deleted_folder_without_checkpoints(self):
        # The name of the file is gone, the file is not: a write to it succeeds.
        code, out, err = restarts.run(self.folder, 0, "run.output_dir=run", "run.steps=3",
                                      rules="gone:write:metrics.csv:1")
        self.assertEqual(code, 1, out + err)
        self.assertIn("rows of the run's history are missing", err)

    def reason(self):
        return json.loads((self.folder / "run/summary.json").read_text())["reason"]

    def test_a_limit_on_the_size_of_files(self):
        run = restarts.start(self.folder, 0, *KEYS, "run.steps=1000000", "checkpoint.every=20")
        self.addCleanup(lambda: (run.kill(), run.wait()))
        deadline = time.monotonic() + restarts.program.PATIENCE
        while not (self.folder / "run/metrics.csv").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        # Not from the start: the memory that an MPI library shares is a file too.
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (200000, 200000))
        code, out, err = restarts.finish(run)
        self.assertEqual(code, 5, out + err)
        self.assertRegex(err, r"no checkpoint of step \d+0\n")
        self.assertRegex(err, "found: +File too large")
        self.assertIn("File too large", self.reason())
        self.assertEqual(list((self.folder / "run/checkpoints").glob("*.part")), [])

    def test_the_last_checkpoint_alone(self):
        """With checkpoint.on_error = "continue" the run is done, and its exit code says that its end is not saved."""
        keys = (*KEYS, "checkpoint.on_error=continue")
        code, out, err = restarts.run(self.folder, 2, *keys, "parallel.tp=2",
                                      rules="full:write:restart-00000008.h5.part:0")
        self.assertEqual(code, 5, out + err)
        self.assertIn("Finished 8 steps", out)
        self.assertEqual(err.count("p3d stops:\nthe last checkpoint could not be written"), 1, err)
        self.assertRegex(err, "found: +the newest is of step 4\n")
        self.assertIn("the newest is of step 4", self.reason())
        self.verified(4)
        # Stopped, and not saved: not "start again to go on from here".
        code, out, err = restarts.run(self.folder, 0, *keys, "run.steps=12", "checkpoint.every=end",
                                      rules="full:write:.h5.part:0;usr1:write:metrics.csv:2")
        self.assertEqual(code, 5, out + err)
        self.assertIn("of 12 (exit code 5): this step was not saved", out)
        code, out, err = restarts.run(self.folder, 0, *keys)
        self.assertEqual(code, 0, out + err)
        self.assertIn("step 4,", out)
        self.verified(4, 8)

    def test_a_checkpoint_at_the_end(self):
        """Every rank writes its share straight from its memory; one of them has no room."""
        end = ("parallel.tp=2", "checkpoint.every=end")
        rules = "full:write:restart-00000008.h5.part:3"
        code, out, err = restarts.run(self.folder, 2, *KEYS, *end, rules=rules, rank=1)
        self.assertEqual(code, 5, out + err)
        self.assertEqual(err.count("no checkpoint of step 8"), 1, err)
        self.assertIn("(rank 1)", err)
        self.assertEqual(list((self.folder / "run/checkpoints").iterdir()), [])
        self.assertEqual(restarts.run(self.folder, 2, *KEYS, *end)[0], 0)
        self.verified(8)

    def test_a_row_of_the_experts_that_was_cut_off(self):
        keys = (*restarts.EXPERTS, "run.output_dir=run", "batch.global=2", "checkpoint.every=end", "run.log_every=1")
        self.assertEqual(restarts.run(self.folder, 0, *keys, "run.steps=2")[0], 0)
        path = self.folder / "run/experts.csv"
        header, *rows = path.read_text().splitlines()
        self.assertEqual([row.split(",")[:2] for row in rows], [[str(s), str(l)] for s in (1, 2) for l in range(8)])
        # A line that an earlier start left in the middle, and one at the end.
        path.write_text("\n".join([header, *rows[:8], rows[8][:-3], *rows[8:15], rows[15][:-2]]))
        self.assertEqual(restarts.run(self.folder, 0, *keys, "run.steps=3")[0], 0)
        found = path.read_text().splitlines()
        self.assertEqual(found[:16], [header, *rows[:15]])
        self.assertEqual([row.split(",")[:2] for row in found[16:]], [["3", str(l)] for l in range(8)])

    def test_an_error_of_one_rank(self):
        for asynchronous in ("true", "false"):
            rank = 1 if asynchronous == "true" else 0
            code, out, err = restarts.run(self.folder, 2, *KEYS, "parallel.tp=2",
                                          f"checkpoint.async={asynchronous}",
                                          rules="full:write:restart-00000004.h5.part:9", rank=rank)
            self.assertEqual(code, 5, out + err)
            self.assertEqual(err.count("no checkpoint of step 4"), 1, err)
            self.assertIn("No space left on device", err)
            self.assertIn(f"(rank {rank})", err)
            self.assertEqual(list((self.folder / "run/checkpoints").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
