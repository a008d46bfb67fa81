# SPDX-License-Identifier: Apache-2.0
"""One run at a time in a folder: a second one is refused, and the lock of a run that was killed is no hindrance."""
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest

import restarts

KEYS = ("checkpoint.every=2", "run.output_dir=run", "batch.global=2")
LOCKS = (".p3d.lock", "checkpoints/.restart.checkpoints.lock")


class Locks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="p3d-lock-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        restarts.write_inputs(self.folder)

    def endless(self, rules=""):
        run = restarts.start(self.folder, 0, *KEYS, "run.steps=1000000", name="endless", rules=rules)
        self.addCleanup(lambda: (run.kill(), run.wait(), [file.close() for file in run.files]))
        deadline = time.monotonic() + restarts.program.PATIENCE
        while not list((self.folder / "run/checkpoints").glob("*.h5")):
            self.assertIsNone(run.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        return run

    def refused(self, words, *keys):
        code, out, err = restarts.run(self.folder, 0, *(keys or KEYS), "run.steps=3")
        self.assertEqual(code, 2, out + err)
        for part in ("expected: a folder that no other run writes to", "delete this file", *words):
            self.assertEqual(err.count(part), 1, err)

    def taken(self, words):
        code, out, err = restarts.run(self.folder, 0, *KEYS, "run.steps=3")
        self.assertEqual((code, err), (0, ""), out)
        self.assertIn(words, out)
        self.assertFalse([lock for lock in LOCKS if (self.folder / "run" / lock).exists()])

    def foreign(self, heartbeat, age, job=""):
        """The lock of a run on another host."""
        path = self.folder / "run" / LOCKS[0]
        path.parent.mkdir(exist_ok=True)
        path.write_text("p3d run\nhost elsewhere\nprocess 17\nstart 4711\nboot x\n"
                        f"job {job}\nrestarts {'0' if job else ''}\nheartbeat_s {heartbeat}\nsince yesterday\n")
        os.utime(path, (time.time() - age,) * 2)
        return path

    def test_two_runs(self):
        first = self.endless()
        self.refused([f"process {first.pid} on host {socket.gethostname()}", "run/.p3d.lock"])
        # Another output folder, but checkpoints of the same name in the same folder.
        other = ("run.output_dir=other", "checkpoint.dir=run/checkpoints", "checkpoint.every=2")
        self.refused(["run/checkpoints/.restart.checkpoints.lock"], *other)
        self.assertIsNone(first.poll())
        # Other names may share the folder of the checkpoints.
        code, out, err = restarts.run(self.folder, 0, *other, "run.name=other", "run.steps=2")
        self.assertEqual((code, err), (0, ""), out)
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.assertTrue(all((self.folder / "run" / lock).exists() for lock in LOCKS))
        code, out, err = restarts.run(self.folder, 0, *KEYS, "run.steps=1000000", "run.time_limit=2s")
        self.assertEqual(code, 75, out + err)
        self.assertIn(f"was left by process {first.pid} on host", out)
        self.assertIn("Resumed from", out)

    def test_a_run_on_another_host_that_lives(self):
        path, ends = self.foreign(5, 0), threading.Event()

        def beat():
            while not ends.wait(0.2):
                os.utime(path)

        heart = threading.Thread(target=beat)
        heart.start()
        try:
            self.refused(["process 17 on host elsewhere", "it is alive"])
        finally:
            ends.set()
            heart.join()
        self.assertIn("elsewhere", path.read_text())

    def test_a_run_on_another_host_that_died(self):
        self.foreign(15, 600)
        self.taken("no sign of life for 60")

    def test_a_run_on_another_host_that_falls_silent(self):
        self.foreign(0.1, 0)
        self.taken("no sign of life for ")

    def test_a_requeued_job(self):
        self.foreign(15, 0, "4242")
        os.environ.update(SLURM_JOB_ID="4242", SLURM_RESTART_COUNT="1")
        try:
            self.taken("an earlier start of this Slurm job")
        finally:
            del os.environ["SLURM_JOB_ID"], os.environ["SLURM_RESTART_COUNT"]

    @unittest.skipUnless(restarts.SHIM, "needs the library that fails at chosen calls")
    def test_a_file_system_without_locks(self):
        rules = "none:lock:.lock:0"
        code, out, err = restarts.run(self.folder, 0, *KEYS, "run.steps=3", rules=rules)
        self.assertEqual((code, err), (0, ""), out)
        self.assertNotIn("Waiting to see", out)  # nobody has the folder
        shutil.rmtree(self.folder / "run")
        first = self.endless(rules)
        code, out, err = restarts.run(self.folder, 0, *KEYS, "run.steps=3", rules=rules)
        self.assertEqual(code, 2, out + err)
        self.assertIn(f"process {first.pid} on host {socket.gethostname()}", err)
        first.send_signal(signal.SIGKILL)
        first.wait()
        code, out, err = restarts.run(self.folder, 0, *KEYS, "run.steps=1000000", "run.time_limit=2s", rules=rules)
        self.assertEqual(code, 75, out + err)
        self.assertIn(f"was left by process {first.pid} on host", out)

    def test_a_file_that_is_no_lock(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / LOCKS[0]).write_text("something else\n")
        self.refused(["a lock that tells nothing of its owner"])


if __name__ == "__main__":
    unittest.main()
