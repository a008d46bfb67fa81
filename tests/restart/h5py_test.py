# SPDX-License-Identifier: Apache-2.0
"""docs/read_checkpoint.py, which knows h5py and nothing of p3d, finds the norms that p3d prints; input and table are
readable."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import restarts

PYTHON = next((p for p in (sys.executable, "/usr/bin/python3")
               if subprocess.run([p, "-c", "import h5py"], stderr=subprocess.DEVNULL).returncode == 0), None)


@unittest.skipUnless(PYTHON, "no python3 here has h5py (Debian: python3-h5py)")
class Independent(unittest.TestCase):
    def test_norms(self):
        with tempfile.TemporaryDirectory(prefix="p3d-h5py-") as name:
            folder = pathlib.Path(name)
            restarts.write_inputs(folder)
            for precision, places in (("fp64", 1e-13), ("fp32", 1e-7)):
                restarts.train(folder, "6tp-pp", precision, f"run.precision={precision}", "run.steps=2",
                               "checkpoint.every=2")
                path = folder / restarts.checkpoint(precision, 2)
                code, text, error = restarts.tool(folder, "checkpoint", "show", path, "--norms")
                self.assertEqual((code, error), (0, ""))
                ours = {m[1]: float(m[2])
                        for m in re.finditer(r"^(\w+/\S+) .* (\d\.\d{16}e\S+) +\S+ +\S+$", text, re.M)}
                script = restarts.program.SOURCE / "docs" / "read_checkpoint.py"
                lines = subprocess.run([PYTHON, script, path], stdout=subprocess.PIPE, text=True,
                                       check=True).stdout.splitlines()
                theirs = {name: float(norm) for name, norm in map(str.split, lines)}
                self.assertEqual(len(theirs), 3 * (2 + 8 * 16 + 2))
                self.assertEqual(sorted(ours), sorted(theirs))
                for array, norm in theirs.items():
                    self.assertAlmostEqual(ours[array], norm, delta=places * norm, msg=array)
                probe = ("import h5py, sys; f = h5py.File(sys.argv[1]); "
                         "print(f.attrs['step'], f.attrs['format'].decode(), "
                         "f['table'][0]['name'].decode(), f['parameters/embed.token.weight'].attrs['unit'].decode())")
                said = subprocess.run([PYTHON, "-c", probe, path], stdout=subprocess.PIPE, text=True, check=True).stdout
                self.assertEqual(said, "2 p3d checkpoint embed.token.weight 1\n")


if __name__ == "__main__":
    unittest.main()
