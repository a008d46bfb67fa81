# SPDX-License-Identifier: Apache-2.0
"""A file system that freezes: the run says which call on which file hangs, and ends with exit code 3 within
comm.timeout_s and a little. The library in P3D_FILE_SHIM lets the call wait for ever."""
import pathlib
import tempfile
import time
import unittest

import restarts

TIMEOUT = 6
PART, FINAL = "restart-00000002.h5.part", "restart-00000002.h5"
# what freezes: (ranks, rank or None, rule, words of the message, further keys)
CASES = {
    "making the file": (1, None, f"block:open:{PART}:1", "open", PART, ()),
    "a write of one rank": (2, 1, f"block:write:{PART}:1", "write", PART, ()),
    "a write, no copy": (2, 0, f"block:write:{PART}:8", "write", PART, ("checkpoint.async=false",)),
    "fsync": (2, 1, f"block:fsync:{PART}:1", "fsync", PART, ()),
    "fsync of rank 0, no copy": (2, 0, f"block:fsync:{PART}:1", "fsync", PART, ("checkpoint.async=false",)),
    "rename": (1, None, f"block:rename:{FINAL}:1", "rename", PART, ()),
    "a row of the history": (2, 0, "block:write:metrics.csv:3", "write", "metrics.csv", ()),
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
                keys = (f"parallel.tp={ranks}", f"run.output_dir=run{n}", f"comm.timeout_s={TIMEOUT}",
                        "checkpoint.every=2")
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


if __name__ == "__main__":
    unittest.main()
