# SPDX-License-Identifier: Apache-2.0
"""P3dKokkos.cmake takes the right targets from each kind of Kokkos, and CMake has nothing to warn about.

The three kinds are likenesses: config files of a few lines with the targets and variables of the real ones."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
for name in ("cmake", "generator", "compiler", "source"):
    parser.add_argument("--" + name)
args = parser.parse_args()


def target(name, include, links=""):
    return (f"add_library({name} INTERFACE IMPORTED)\nset_target_properties({name} PROPERTIES "
            f'INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}/{include}" '
            f'INTERFACE_LINK_LIBRARIES "{links}")\n')


def head(version):
    return f'set(Kokkos_VERSION {version})\nset(Kokkos_DEVICES "SERIAL")\n'


def plain(version):
    return head(version) + target("Kokkos::kokkos", "of_kokkos")


KINDS = {  # name: (config of Kokkos, config of Kokkos-Kernels, said to be from Trilinos)
    "plain 4 or 5": (plain("4.7.0"), target("Kokkos::kokkoskernels", "of_kernels", "Kokkos::kokkos") +
                     "add_library(KokkosKernels::all_libs ALIAS Kokkos::kokkoskernels)\n", False),
    "Trilinos 13": (head("3.4.1") + target("trilinos_kokkoscore", "of_kokkos") + target("Kokkos::kokkos", "not_there") +
                    "set(Kokkos_LIBRARIES trilinos_kokkoscore)\n"
                    "set(Kokkos_INCLUDE_DIRS ${CMAKE_CURRENT_LIST_DIR}/of_kokkos)\n",
                    target("trilinos_kokkoskernels", "of_kernels", "trilinos_kokkoscore") +
                    "set(KokkosKernels_INCLUDE_DIRS ${CMAKE_CURRENT_LIST_DIR}/of_kernels)\n", True),
    "Trilinos 16, 17": (plain("5.0.2"),
                        target("KokkosKernels::trilinos_kokkoskernels", "of_kernels", "Kokkos::kokkos") +
                        target("KokkosKernels::all_libs", "of_kernels", "KokkosKernels::trilinos_kokkoskernels") +
                        "add_library(trilinos_kokkoskernels INTERFACE IMPORTED)\n"
                        "target_link_libraries(trilinos_kokkoskernels INTERFACE\n"
                        "  KokkosKernels::trilinos_kokkoskernels)\n"
                        "set_target_properties(trilinos_kokkoskernels PROPERTIES DEPRECATION"
                        ' "The non-namespaced target trilinos_kokkoskernels is deprecated")\n', True),
}
# The compiler is not tried: it costs a second, and this is not about it.
PROJECT = """cmake_minimum_required(VERSION 3.22)
set(CMAKE_CXX_COMPILER_FORCED ON)
project(likeness LANGUAGES CXX)
include(@SOURCE@/cmake/P3dKokkos.cmake)
message(STATUS "Kokkos '${P3D_KOKKOS_VERSION}'${P3D_KOKKOS_NOTE}; Kokkos-Kernels '${P3D_KOKKOSKERNELS_VERSION}'")
add_executable(program program.cpp)
target_link_libraries(program PRIVATE p3d_kokkoskernels)
"""

for kind, (kokkos, kernels, from_trilinos) in KINDS.items():
    with tempfile.TemporaryDirectory(prefix="p3d-kokkos-") as name:
        folder = pathlib.Path(name)
        for package, text in (("Kokkos", kokkos), ("KokkosKernels", kernels)):
            (folder / package).mkdir()
            (folder / package / f"{package}Config.cmake").write_text(text)
        for include, header in (("Kokkos/of_kokkos", "kokkos.hpp"), ("KokkosKernels/of_kernels", "kernels.hpp")):
            (folder / include).mkdir()
            (folder / include / header).write_text("#pragma once\n")
        (folder / "CMakeLists.txt").write_text(PROJECT.replace("@SOURCE@", args.source))
        (folder / "program.cpp").write_text("#include <kokkos.hpp>\n#include <kernels.hpp>\nint main() {}\n")
        configure = [args.cmake, "-S", name, "-B", name + "/build", "-G", args.generator,
                     f"-DCMAKE_CXX_COMPILER={args.compiler}", f"-DKokkos_DIR={name}/Kokkos",
                     f"-DKokkosKernels_DIR={name}/KokkosKernels"]
        for command in (configure, [args.cmake, "--build", name + "/build"]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0 or "warning" in done.stdout.lower():
                sys.exit(f"{kind}: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
            if command is configure and ("(from Trilinos)" in done.stdout) != from_trilinos:
                sys.exit(f"{kind}: '(from Trilinos)' expected: {from_trilinos}\n{done.stdout}")
    print(f"{kind}: configures and builds, no warning")
