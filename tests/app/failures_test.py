# SPDX-License-Identifier: Apache-2.0
"""Ranks that die or stop, and numbers that are none: bounded time, a report, and nobody left."""
import os
import signal
import time
import unittest

import program
from program import AppTest

MESH = ("parallel.dp=1", "parallel.tp=2", "parallel.pp=2")


class Failures(AppTest):
    def checkpoints(self):
        return {file.name: file.read_bytes() for file in (self.results / "checkpoints").glob("*.h5")}

    def check_killed(self, rank):
        run = self.start_training(4, *MESH)
        os.kill(run.ranks[rank], signal.SIGKILL)
        self.report(f"SIGKILL to rank {rank} of 4", run, run.finish())
        self.assertIn(run.code, (signal.SIGKILL, 128 + signal.SIGKILL), run.err)  # not a crash of another rank
        self.assertGreaterEqual(len(self.metrics()), 3)

    def test_a_rank_is_killed(self):
        self.check_killed(1)

    def test_rank_0_is_killed(self):
        self.check_killed(0)

    def check_stopped(self, rank):
        run = self.start_training(4, *MESH, "comm.timeout_s=3")
        os.kill(run.ranks[rank], signal.SIGSTOP)
        self.report(f"SIGSTOP to rank {rank} of 4, comm.timeout_s=3", run, run.finish())
        self.assertEqual(run.code, 3, run.err) if program.IS_HYDRA else self.assertNotIn(run.code, (0, 75))
        self.assert_once("a wait outlasted comm.timeout_s = 3 s", run.err)
        self.assert_once(f"rank {rank}: no answer", run.err)
        for other in {0, 1, 2, 3} - {rank}:
            self.assertRegex(run.err, f"rank {other}: step \\d+.*: waited ")

    def test_a_rank_is_stopped(self):
        self.check_stopped(2)

    def test_rank_0_is_stopped(self):
        self.check_stopped(0)

    def test_all_ranks_are_stopped_for_a_while(self):
        run = self.start_training(4, *MESH, "comm.timeout_s=2")
        for rank in run.ranks.values():
            os.kill(rank, signal.SIGSTOP)
        time.sleep(3)
        for rank in run.ranks.values():
            os.kill(rank, signal.SIGCONT)
        done = len(self.metrics())
        run.wait_until(lambda: len(self.metrics()) > done + 1, "steps after the stop")
        os.kill(run.ranks[0], signal.SIGTERM)
        run.finish()
        self.assertEqual(run.code, 75, run.err)

    def test_not_a_number(self):
        run = self.run_to_end(4, *MESH, "optimizer.lr=1e30", "run.log_every=1")
        self.report("loss or gradient not finite, 4 ranks", run, run.seconds)
        self.assertEqual(run.code, 4, run.err)
        self.assert_once("p3d stops:", run.err)
        self.assertRegex(run.err, r"at step \d+; first bad tensor in model order: "
                         r"the (value|gradient) of (embed|layer|block|final)")
        rows = self.metrics()
        self.assertIn(f"where:    step {len(rows) + 1} of 6", run.err)

    def test_weights_that_are_not_finite_replace_no_checkpoint(self):
        # fp16 holds no number of 65520 and more, so one update with this rate leaves nothing that can be read. No step
        # comes behind it whose loss would tell.
        good = ("run.precision=fp16", "checkpoint.every=1", "checkpoint.keep=1", "run.steps=1")
        run = self.run_to_end(1, *good)
        self.assertEqual(run.code, 0, run.err)
        files = self.checkpoints()
        for number, layout in ((1, ()), (4, MESH)):
            run = self.run_to_end(number, *layout, *good, "run.steps=2", "optimizer.lr=1e6", "optimizer.warmup_steps=0")
            self.assertEqual(run.code, 4, run.err)
            self.assert_once("p3d stops:", run.err)
            self.assertRegex(run.err, "finite weights\n.*first bad tensor in model order: the value of "
                                      "(embed|layer|block|final)")
            self.assertEqual(self.checkpoints(), files)
        run = self.run_to_end(1, *good, "run.steps=2")  # the good file is of use
        self.assertEqual(run.code, 0, run.err)

    def test_weights_that_are_not_finite_end_a_run_without_checkpoints(self):
        run = self.run_to_end(1, "run.precision=fp16", "checkpoint.every=0", "run.steps=1", "run.eval_batches=0",
                              "optimizer.lr=1e6", "optimizer.warmup_steps=0")
        self.assertEqual(run.code, 4, run.err)
        self.assertIn("expected: finite weights", run.err)

    def test_no_loss_scale_mends_weights(self):
        run = self.run_to_end(1, "run.precision=fp16", "checkpoint.every=0", "run.steps=4", "run.eval_batches=0",
                              "optimizer.lr=1e6", "optimizer.warmup_steps=0")
        self.assertEqual(run.code, 4, run.err)
        self.assertRegex(run.err, r"at step 2; first bad tensor in model order: the value of")


if __name__ == "__main__":
    unittest.main()
