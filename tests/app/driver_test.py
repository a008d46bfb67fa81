# SPDX-License-Identifier: Apache-2.0
"""Where no driver of GPUs is (login nodes, containers) p3d starts, and all that computes nothing runs; a run says what
it misses. Builds for GPUs show all of that; in others p3d asks for no driver anyway."""
import os
import re
import subprocess
import unittest
import unittest.mock

import program
from program import AppTest

DRIVER = "libcuda.so"
INPUT = (str(program.SOURCE / "inputs/quickstart.toml"), "data.format=synthetic")


def needed_by(path):
    """The libraries that a program or library names, its own need alone."""
    listed = subprocess.run(["readelf", "-d", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", listed)


class Driver(AppTest):
    def run_without_gpu(self, ranks, *words):
        hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""}
        with unittest.mock.patch.dict(os.environ, hidden):
            run = program.Run(ranks, words, self.folder)
        self.addCleanup(run.kill)
        run.finish()
        return run

    def test_nothing_of_p3d_needs_the_driver_to_start(self):
        loaded = subprocess.run(["ldd", program.PROGRAM], stdout=subprocess.PIPE, text=True, check=True).stdout
        paths = [program.PROGRAM, *re.findall(r"=> (/\S+)", loaded)]
        self.assertTrue(any("libstdc++" in str(path) for path in paths), loaded)
        needing = [path for path in paths if any(name.startswith(DRIVER) for name in needed_by(path))]
        ours = [path for path in needing if re.match(r"(p3d|libp3d)", os.path.basename(path))]
        self.assertEqual(ours, [], "these need libcuda.so.1: src/device/cuda_driver.cpp lacks a function that this "
                                   "Kokkos calls (nm -u libkokkoscore.a | grep ' cu[A-Z]')")
        if needing:
            self.skipTest(f"shared libraries of others need the driver: {needing}")

    def test_what_computes_nothing_runs_without_a_gpu(self):
        for words in (("--version",), ("--check", *INPUT), ("mesh", *INPUT), ("schedule", "show", *INPUT)):
            run = self.run_without_gpu(0, *words)
            self.assertEqual(run.code, 0, run.out + run.err)

    def test_a_run_without_a_gpu_says_so_once(self):
        version = self.run_without_gpu(0, "--version").out
        if not re.search(r"Kokkos.*(CUDA|HIP|SYCL)", version):
            self.skipTest("this build computes on the host")
        run = self.run_without_gpu(2, *INPUT, "run.steps=1")
        self.assertEqual(run.code, 2, run.out + run.err)
        self.assertEqual(run.err.count("a GPU that this process may use"), 1, run.err)
        self.assertNotIn("terminate", run.err)


if __name__ == "__main__":
    unittest.main()
