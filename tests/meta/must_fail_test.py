# SPDX-License-Identifier: Apache-2.0
"""must_fail.py passes for the failure that is meant and for no other: success, another code, other words, a crash."""
import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "support" / "must_fail.py"


def tried(code, words, program):
    done = subprocess.run([sys.executable, "-B", SCRIPT, str(code), words, sys.executable, "-c", program],
                          stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


class MustFail(unittest.TestCase):
    def test_the_failure_that_is_meant(self):
        self.assertEqual(tried(1, r"(\d+) of \1 bad", "print('x\\n3 of 3 bad'); exit(1)"), (0, "x\n3 of 3 bad\n"))

    def test_any_other(self):
        for code, words, program in ((1, "bad", "print('bad')"), (1, "bad", "print('bad'); exit(2)"),
                                     (1, "bad", "exit(1)"),
                                     (1, r"(\d+) of \1 bad", "print('2 of 3 bad'); exit(1)"),
                                     (1, "bad", "import os; print('bad', flush=True); os.abort()")):
            with self.subTest(program=program):
                self.assertEqual(tried(code, words, program)[0], 1)


if __name__ == "__main__":
    unittest.main()
