# SPDX-License-Identifier: Apache-2.0
"""A disk that is full in the middle of a checkpoint: one message, the older checkpoints intact, and checkpoint.on_error
decides. The disk is a small tmpfs in a mount namespace of its own; without the right to make one the test is
skipped."""
import pathlib
import subprocess
import tempfile
import unittest

import restarts

NAMESPACE = ("unshare", "--mount", "--map-root-user")
# One checkpoint of the run below takes 1.1 MB: two fit, a third does not.
SCRIPT = """
mount -t tmpfs -o size=2600k none disk || exit 99
"$@" > out 2> err
echo $? > code
ls disk > names
"$P3D_PROGRAM" checkpoint verify disk/*.h5 > verified
"""


def can_mount():
    with tempfile.TemporaryDirectory() as folder:
        try:
            return subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", folder], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL).returncode == 0
        except OSError:
            return False


@unittest.skipUnless(can_mount(), "no right to mount a small disk (unshare --mount --map-root-user)")
class FullDisk(unittest.TestCase):
    def run_on_small_disk(self, *more):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-disk-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "disk").mkdir()
        restarts.write_inputs(self.folder)
        words = [*restarts.program.MPIEXEC, "2", restarts.program.PROGRAM, "input.toml", *restarts.keys("2tp", "run"),
                 "run.precision=fp64", "checkpoint.every=2", f"checkpoint.dir={self.folder}/disk", "run.steps=10",
                 *more]
        run = subprocess.Popen([*NAMESPACE, "sh", "-c", SCRIPT, "sh", *map(str, words)], cwd=self.folder,
                               start_new_session=True)
        self.addCleanup(lambda: subprocess.run(["pkill", "-KILL", "-f", str(self.folder)], stderr=subprocess.DEVNULL))
        self.assertEqual(run.wait(restarts.program.PATIENCE), 0)
        return [(self.folder / name).read_text() for name in ("out", "err", "code", "names", "verified")]

    def check(self, asynchronous):
        for on_error, code, steps in (("stop", 5, range(6, 9)), ("continue", 5, (10,))):
            out, err, found, names, verified = self.run_on_small_disk(f"checkpoint.async={asynchronous}",
                                                                      f"checkpoint.on_error={on_error}")
            print(f"\n  measured: full disk, async={asynchronous}, on_error={on_error}: exit code {found.strip()}\n"
                  f"{err}", flush=True)
            self.assertEqual(int(found), code, out + err)
            self.assertRegex(err, r"found: +.*No space left on device|found: +.*full")
            self.assertIn("no checkpoint of step 6", err)
            self.assertRegex(err, r"the checkpoint of step 4 is intact")
            self.assertEqual(names.split(), ["restart-00000002.h5", "restart-00000004.h5"])
            self.assertEqual(verified.count("good (seal"), 2)
            last = len((self.folder / "run" / "metrics.csv").read_text().splitlines()) - 1
            self.assertIn(last, steps)
            self.assertNotIn("Checkpoint of step 6", out)
            self.assertEqual(err.count("p3d stops:\nthe last checkpoint could not be written"), on_error == "continue")

    def test_written_while_training_goes_on(self):
        self.check("true")

    def test_written_together(self):
        self.check("false")


if __name__ == "__main__":
    unittest.main()
