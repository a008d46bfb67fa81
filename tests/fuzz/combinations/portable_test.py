# SPDX-License-Identifier: Apache-2.0
"""The program of the cases in the form of devices: libp3d really takes the kernels that were put in front of it."""
import os
import re
import subprocess
import sys
import unittest


class Portable(unittest.TestCase):
    def test_kernels_come_from_the_portable_form(self):
        environment = {**os.environ, "LD_BIND_NOW": "1", "LD_DEBUG": "bindings"}
        run = subprocess.run([PROGRAM, "--version"], env=environment, capture_output=True, text=True, check=True)
        bound = re.findall(r"binding file \S*libp3d\.so\S* \[0\] to (\S+) \[0\]: normal symbol `(\S*p3d7kernels\S*)'",
                           run.stderr)
        from_form = {symbol for file, symbol in bound if "libp3d_portable_first" in file}
        self.assertGreater(len(from_form), 300, "functions of the kernels that libp3d calls")
        names = " ".join(from_form)
        for kernel in ("attention_forward", "norm_backward", "add_sum_squares", "bias_backward", "adamw"):
            self.assertIn(kernel, names)

if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
