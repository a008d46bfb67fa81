# SPDX-License-Identifier: Apache-2.0
"""A file system that freezes: the run says which call on which file hangs, and ends with exit code 3 within
run.file_timeout_s and a little. One that is only slow ends nothing, though ranks wait for longer than comm.timeout_s.
The library in P3D_FILE_SHIM lets the call wait, for ever or for some seconds."""
import fcntl
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import restarts

TIMEOUT, COMM_TIMEOUT = 6, 4
PART, FINAL = "restart-00000002.h5.part", "restart-00000002.h5"
# what freezes: (ranks, rank or None, rule, words of the message, further keys)
CASES = {
    "making the file": (1, None, f"block:open:{PART}:1", "open", PART, ()),
    "a write of one rank": (2, 1, f"block:write:{PART}:1", "write", PART, ()),
    "a write, no copy": (2, 0, f"block:write:{PART}:8", "write", PART, ("checkpoint.async=false",)),
    "a write at the end": (2, 1, f"block:write:{PART}:1", "write", PART, ("checkpoint.every=end", "run.steps=2")),
    "fsync at the end": (2, 1, f"block:fsync:{PART}:1", "fsync", PART, ("checkpoint.every=end", "run.steps=2")),
    "fsync": (2, 1, f"block:fsync:{PART}:1", "fsync", PART, ()),
    "fsync of rank 0, no copy": (2, 0, f"block:fsync:{PART}:1", "fsync", PART, ("checkpoint.async=false",)),
    "rename": (1, None, f"block:rename:{FINAL}:1", "rename", PART, ()),
    "a row of the history": (2, 0, "block:write:metrics.csv:3", "write", "metrics.csv", ()),
}
SLOW = 9  # seconds, above two of COMM_TIMEOUT
# what is slow: (rank, rule, what the ranks that wait are told, further keys)
SLOW_CASES = {
    "fsync of a share": (1, f"slow{SLOW}:fsync:{PART}:1", None, ()),
    "fsync of rank 0, no copy": (0, f"slow{SLOW}:fsync:{PART}:1", f"rank 0 is in fsync of .*{PART}",
                                 ("checkpoint.async=false",)),
    "a write, no copy": (0, f"slow{SLOW}:write:{PART}:8", f"rank 0 is in write of .*{PART}",
                         ("checkpoint.async=false",)),
    "a row of the history": (0, f"slow{SLOW}:write:metrics.csv:3", "rank 0 is in write of .*metrics.csv", ()),
    "reading at the start": (1, f"slow{SLOW}:read:restart-00000004.h5:2", "rank 1 is in read of .*4.h5",
                             ("checkpoint.resume=first/checkpoints/restart-00000004.h5",)),
}


@unittest.skipUnless(restarts.SHIM, "needs the library that freezes files")
class Frozen(unittest.TestCase):
    def test_the_call_and_the_file_are_named(self):
        with tempfile.TemporaryDirectory(prefix="p3d-frozen-") as name:
            folder, runs = pathlib.Path(name), {}
            restarts.write_inputs(folder)
            begin = time.monotonic()
            # They only wait: all at once.
            for n, (case, (ranks, rank, rule, _, _, more)) in enumerate(CASES.items()):
                keys = (f"parallel.tp={ranks}", f"run.output_dir=run{n}", f"run.file_timeout_s={TIMEOUT}",
                        f"comm.timeout_s={COMM_TIMEOUT}", "checkpoint.every=2")
                runs[case] = restarts.start(folder, ranks, *keys, "run.steps=4", *more, rules=rule, rank=rank, name=n)
            for n, (case, (_, rank, _, call, file, _)) in enumerate(CASES.items()):
                with self.subTest(case):
                    code, out, err = restarts.finish(runs[case])
                    print(f"\n  measured: {case}: exit code {code} after {time.monotonic() - begin:.1f} s at most")
                    self.assertEqual(code, 3, out + err)
                    self.assertRegex(err, rf"found: +({call}) that has not returned for \d\.\d s")
                    self.assertRegex(err, rf"where: +\S*run{n}/\S*{file}\n")
                    self.assertNotIn("Checkpoint of step 2:", out)
                    if rank is not None:
                        self.assertIn(f"[rank {rank}] p3d stops: the disk does not answer", err)
            self.assertLess(time.monotonic() - begin, restarts.program.PATIENCE)

    def test_a_slow_disk_is_waited_for(self):
        with tempfile.TemporaryDirectory(prefix="p3d-slow-") as name:
            folder, runs = pathlib.Path(name), {}
            restarts.write_inputs(folder)
            keys = ("parallel.tp=2", f"comm.timeout_s={COMM_TIMEOUT}", "checkpoint.every=2", "run.steps=6")
            first = restarts.start(folder, 2, *keys, "run.output_dir=first", name="first")
            self.assertEqual(restarts.finish(first)[0], 0)
            for n, (case, (rank, rule, _, more)) in enumerate(SLOW_CASES.items()):
                runs[case] = restarts.start(folder, 2, *keys, f"run.output_dir=slow{n}", *more, rules=rule, rank=rank,
                                            name=n)
            for n, (case, (_, _, told, more)) in enumerate(SLOW_CASES.items()):
                with self.subTest(case):
                    begin = time.monotonic()
                    code, out, err = restarts.finish(runs[case])
                    print(f"\n  measured: {case}: exit code {code} after {time.monotonic() - begin:.1f} s more")
                    self.assertEqual(code, 0, out + err)
                    self.assertEqual(restarts.losses(folder, f"slow{n}")[-2:], restarts.losses(folder, "first")[-2:])
                    self.assertIn("Checkpoint of step 6:", out)
                    if told:
                        self.assertRegex(err, rf"a wait has lasted comm.timeout_s = {COMM_TIMEOUT} s; it goes on, as "
                                              + told)

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "needs the folder of the turns")
    def test_a_turn_that_another_run_keeps_is_waited_for(self):
        """Ranks of a node write in turns to a local disk, and another run's rank may hang in its turn. Rank 1 waits for
        its turn for longer than comm.timeout_s; rank 0, which has no locks, does not take it for hung."""
        with tempfile.TemporaryDirectory(prefix="p3d-turn-") as name:
            folder = pathlib.Path(name)
            kind = subprocess.run(["stat", "-f", "-c", "%T", name], stdout=subprocess.PIPE, text=True).stdout.strip()
            if kind not in ("ext2/ext3", "xfs", "btrfs"):
                self.skipTest(f"writers take no turns on {kind}")
            restarts.write_inputs(folder)
            turns = os.open("/dev/shm", os.O_RDONLY)
            self.addCleanup(os.close, turns)
            fcntl.flock(turns, fcntl.LOCK_EX)
            run = restarts.start(folder, 2, "parallel.tp=2", "run.output_dir=run", "run.steps=2",
                                 "checkpoint.every=end", "comm.timeout_s=3", rules="none:lock:/dev/shm:0", rank=0,
                                 name="turn")
            code, out, err = restarts.finish(run)
            self.assertEqual(code, 0, out + err)
            self.assertIn("Checkpoint of step 2:", out)
            self.assertIn("it goes on, as rank 1 is in flock of /dev/shm", err)


if __name__ == "__main__":
    unittest.main()
