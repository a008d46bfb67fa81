# SPDX-License-Identifier: Apache-2.0
"""What stops a run (signals, run.time_limit, the end of a Slurm job): a checkpoint, exit code 75, and going on from
there gives the losses of a run that was never stopped."""
import os
import pathlib
import signal
import tempfile
import time
import unittest

import restarts
from restarts import program

LAYOUT = "2tp"
KEYS = ("run.precision=fp64", "optimizer.lr_schedule=constant", "batch.global=2", "checkpoint.every=1000000")


class Stops(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-stop-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def start(self, *more):
        run = program.Run(2, ["input.toml", *restarts.keys(LAYOUT, "run", *KEYS, "run.steps=1000000", *more)],
                          self.folder)
        self.addCleanup(run.kill)
        return run

    def check(self, case, run):
        begin = time.monotonic()
        run.finish()
        print(f"\n  measured: {case}: exit code {run.code} after {time.monotonic() - begin:.2f} s", flush=True)
        self.assertEqual(run.code, 75, run.out + run.err)
        stopped = restarts.losses(self.folder, "run")
        last = stopped[-1][0]
        self.assertEqual([p.name for p in (self.folder / "run/checkpoints").iterdir()], [f"restart-{last:08d}.h5"])
        self.assertRegex(run.out, rf"(?s)Checkpoint of step {last}: .*exit code 75")

        restarts.train(self.folder, LAYOUT, "run", *KEYS, f"run.steps={last + 3}")
        restarts.train(self.folder, LAYOUT, "straight", *KEYS, f"run.steps={last + 3}", "checkpoint.every=0")
        straight = restarts.losses(self.folder, "straight")
        self.assertEqual(stopped, straight[:last])
        self.assertEqual([row for row in restarts.losses(self.folder, "run") if row[0] > last], straight[last:])

    def signalled(self, number, ranks):
        run = self.start()
        run.wait_until(lambda: (self.folder / "run/metrics.csv").exists()
                       and len(restarts.losses(self.folder, "run")) > 5, "step 5")
        run.find_ranks()
        for rank in ranks:
            os.kill(run.ranks[rank], number)
        return run

    def test_sigusr1_to_all_ranks(self):
        self.check("SIGUSR1 to both ranks", self.signalled(signal.SIGUSR1, (0, 1)))

    def test_sigterm_to_one_rank(self):
        self.check("SIGTERM to rank 1 of 2", self.signalled(signal.SIGTERM, (1,)))

    def test_time_limit(self):
        self.check("run.time_limit of 3 s", self.start("run.time_limit=3s"))

    def test_end_of_a_slurm_job(self):
        os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 4)
        try:
            run = self.start()
        finally:
            del os.environ["SLURM_JOB_END_TIME"]
        self.check("SLURM_JOB_END_TIME in 4 s", run)

    def test_skipped_steps_stay_counted(self):
        """In fp16 the first steps overflow and are skipped; the learning rate does not count them, in whatever
        precision the run goes on."""
        keys = ("batch.global=2", "checkpoint.every=4")
        half = ("run.precision=fp16", "precision.loss_scale_initial=1e25", "precision.loss_scale_backoff=1e-10",
                "precision.loss_scale_hysteresis=1")

        def rates(output):
            return [row[4] for row in restarts.rows(self.folder, output)]

        def train(output, *more):
            return restarts.train_with(self.folder, 1, *keys, f"run.output_dir={output}", *more)

        self.assertRegex(train("whole", *half, "run.steps=12"), r"Skipped since step 0: [23] steps, .*; the loss scale")
        expected = rates("whole")
        self.assertLess(len(set(expected)), 12)
        train("run", *half, "run.steps=12")
        for step in (12, 8):
            (self.folder / restarts.checkpoint("run", step)).unlink()
        said = train("run", "run.precision=bf16", "run.steps=12")
        self.assertIn("step 4,", said)
        self.assertRegex(said, r"Skipped since step 0: [23] steps, whose gradients overflowed\n")
        self.assertEqual(rates("run"), expected)
        (self.folder / restarts.checkpoint("run", 12)).unlink()
        # From the bf16 run's step 8: a new scale, the old count.
        said = train("run", "run.precision=fp16", "precision.loss_scale_initial=256", "run.steps=12")
        self.assertIn("step 8,", said)
        self.assertRegex(said, r"Skipped since step 0: [23] steps, .*; the loss scale is now 256\n")
        self.assertEqual(rates("run"), expected)


if __name__ == "__main__":
    unittest.main()
