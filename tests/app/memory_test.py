# SPDX-License-Identifier: Apache-2.0
"""Memory is predicted by rooms that need neither Kokkos nor MPI: plan_predict (tests/unit/plan/predict.cpp), which
links no others, says the same of the shipped inputs as `p3d --check --verbose`."""
import os
import pathlib
import re
import subprocess
import unittest

import program

PREDICT = pathlib.Path(os.environ["P3D_PREDICT"])
INPUTS = program.SOURCE / "inputs"
LICENSE = f"data.path={program.SOURCE / 'LICENSE'}"
WHOLE_WAY = ("data.format=synthetic", "data.path=[]", "data.shuffle=windows",
             f"data.tokenizer={program.SOURCE / 'tests/unit/text/tokenizers/gpt2.json'}")
# With the ranks that their comments name; what is offloaded to a disk, recomputed and divided too.
CASES = [("quickstart", 8, LICENSE), ("quickstart", 4, LICENSE, "parallel.dp=1", "parallel.tp=1", "parallel.pp=4"),
         ("gpt2-tiny", 1), ("gpt2-tiny", 6, "parallel.tp=3", "parallel.pp=2"), ("llama-tiny", 5, "parallel.pp=5"),
         ("gpt2-124m", 4), ("mixtral-tiny", 2), ("mixtral-tiny", 8, "parallel.dp=8", "parallel.ep=8"),
         ("llama3-8b", 64), ("llama-3b", 2), ("whole-way", 4, *WHOLE_WAY),
         ("quickstart", 8, LICENSE, "memory.recompute=full", "pipeline.schedule=zb_h1", "pipeline.vocab_parallel=true"),
         ("quickstart", 8, LICENSE, "memory.shard=parameters", "memory.offload_parameters=disk",
          "memory.offload_optimizer=disk", "memory.offload_dir=/tmp", "run.precision=bf16"),
         ("gpt2-tiny", 8, "parallel.cp=4", "parallel.tp=2", "parallel.sequence=true", 'memory.recompute=["norm"]')]


class Memory(unittest.TestCase):
    def test_is_what_check_prints(self):
        compared = 0
        for name, ranks, *words in CASES:
            with self.subTest(name=name, ranks=ranks, words=words):
                path = str(INPUTS / f"{name}.toml")
                alone = subprocess.run([PREDICT, path, str(ranks), *words], capture_output=True, text=True)
                checked = subprocess.run([program.PROGRAM, "--check", "--verbose", path, "--ranks", str(ranks), *words],
                                         capture_output=True, text=True)
                if alone.returncode != 0:  # a build without 16 bits
                    self.assertIn("run.precision", alone.stderr)
                    self.assertEqual(checked.returncode, 2, checked.stdout)
                    continue
                memory, buffers = alone.stdout.split("Memory by buffer", 1)
                self.assertIn(memory.rstrip(), checked.stdout, checked.stderr)
                self.assertIn(buffers.rstrip(), checked.stdout)
                compared += 1
        self.assertGreaterEqual(compared, len(CASES) - 3)

    def test_buffers_say_what_becomes_of_them(self):
        """A buffer stands in the slots unless recomputation discards it; then in the workspace."""
        path = str(INPUTS / "gpt2-tiny.toml")
        found = subprocess.run([PREDICT, path, "1"], capture_output=True, text=True).stdout
        rows = {line.split()[0]: line for line in found.splitlines() if re.match(r"(layer|scratch|stage)\.", line)}
        self.assertIn('kept unless "norm"', rows["layer.norm1_y"])
        self.assertIn("scratch", rows["scratch.branch"])
        discarded = subprocess.run([PREDICT, path, "1", 'memory.recompute=["norm"]'], capture_output=True, text=True)
        line, = re.findall(r"^layer\.norm1_y .*", discarded.stdout, re.M)
        self.assertRegex(line, r"^layer\.norm1_y +- +[\d.]+ \w*B ")

    @unittest.skipUnless(os.uname().sysname == "Linux", "ldd")
    def test_links_neither_kokkos_nor_mpi(self):
        linked = subprocess.run(["ldd", PREDICT], capture_output=True, text=True, check=True).stdout.lower()
        self.assertIn("libc.so", linked)
        for name in ("kokkos", "mpi", "hdf5", "blas"):
            self.assertNotIn(name, linked)
        names = subprocess.run(["nm", "-C", PREDICT], capture_output=True, text=True).stdout
        self.assertNotRegex(names, r"\bKokkos::|\bMPI_[A-Z]")


if __name__ == "__main__":
    unittest.main()
