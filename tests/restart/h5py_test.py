# SPDX-License-Identifier: Apache-2.0
"""docs/read_checkpoint.py, which knows h5py and nothing of p3d, finds the norms that p3d prints; input and table are
readable. What docs/write_checkpoint.py changed and sealed, p3d reads and goes on from."""
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

    def test_a_changed_copy(self):
        with tempfile.TemporaryDirectory(prefix="p3d-h5py-") as name:
            folder = pathlib.Path(name)
            restarts.write_inputs(folder)
            for precision in ("fp64", "fp32"):
                keys = (f"run.precision={precision}", "checkpoint.every=2")
                restarts.train(folder, "6tp-pp", precision, *keys, "run.steps=2")
                path = folder / restarts.checkpoint(precision, 2)
                copy = folder / f"{precision}.h5"
                changed = ("import h5py, numpy, sys; a = h5py.File(sys.argv[1])['parameters/final_norm.weight'][...]; "
                           "a[5] += 0.25; numpy.save(sys.argv[2], a)")
                subprocess.run([PYTHON, "-c", changed, path, folder / "norm.npy"], check=True)
                script = restarts.program.SOURCE / "docs" / "write_checkpoint.py"
                subprocess.run([PYTHON, script, path, copy, f"parameters/final_norm.weight={folder}/norm.npy"],
                               check=True)
                code, text, error = restarts.tool(folder, "checkpoint", "verify", copy)
                self.assertEqual((code, error), (0, ""), text)
                code, text, _ = restarts.tool(folder, "checkpoint", "diff", path, copy)
                self.assertEqual(code, 1, text)
                self.assertEqual(len(re.findall(r"\d elements? differ", text)), 1, text)
                self.assertRegex(text, r"parameters/final_norm\.weight: 1 element.* most by 2\.500e-01 at \[0, 5\]")
                restarts.train(folder, "2dp", f"{precision}-on", *keys, "run.steps=4", f"checkpoint.resume={copy}")
                # Without the new seal p3d refuses it.
                unsealed = "import h5py, sys; h5py.File(sys.argv[1], 'r+')['parameters/final_norm.weight'][5] += 1"
                subprocess.run([PYTHON, "-c", unsealed, copy], check=True)
                code, _, error = restarts.tool(folder, "checkpoint", "verify", copy)
                self.assertIn(code, (1, 2), error)


if __name__ == "__main__":
    unittest.main()
