# SPDX-License-Identifier: Apache-2.0
"""CMake names everything that is missing at once, with the packages of apt and Spack (hides three things from it)."""
import argparse
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
for name in ("cmake", "generator", "compiler", "source"):
    parser.add_argument("--" + name)
args = parser.parse_args()

with tempfile.TemporaryDirectory(prefix="p3d-missing-") as build:
    done = subprocess.run([args.cmake, "-S", args.source, "-B", build, "-G", args.generator,
                           f"-DCMAKE_CXX_COMPILER={args.compiler}"] +
                          [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON"
                           for name in ("tomlplusplus", "Random123", "Kokkos")],
                          capture_output=True, text=True)
if done.returncode == 0:
    sys.exit("configured without toml++, Random123 and Kokkos")
for word in ("toml++: the input file", "Random123: counter-based random numbers", "Kokkos: kernels",
             "apt-get install libtomlplusplus-dev librandom123-dev libtrilinos-kokkos-dev "
             "libtrilinos-kokkos-kernels-dev\n",
             "spack install tomlplusplus random123 kokkos kokkos-kernels+blas\n"):
    if word not in done.stderr:
        sys.exit(f"expected '{word}' in:\n{done.stderr}")
if "fmt: " in done.stderr:
    sys.exit(f"fmt is not missing:\n{done.stderr}")
