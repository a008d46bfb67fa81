# SPDX-License-Identifier: Apache-2.0
"""What the configure step says where Kokkos has CUDA: which compiler and which Kokkos will do, where NCCL is found.

Nothing of CUDA is needed: Kokkos, the toolkit and NCCL are likenesses of a few lines, and nvcc_wrapper is a script that
answers the one question that P3dGpu.cmake asks of it."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
for name in ("cmake", "generator", "compiler", "source"):
    parser.add_argument("--" + name)
args = parser.parse_args()

WRAPPER = """#!/bin/sh
for word; do
  [ "$word" != -E ] || { echo "p3d_nvcc @VERSION@"; exit 0; }
done
exec @COMPILER@ "$@"
"""
KOKKOS = """set(Kokkos_VERSION @VERSION@)
set(Kokkos_DEVICES "CUDA;SERIAL")
add_library(Kokkos::kokkoscore STATIC IMPORTED)
set_target_properties(Kokkos::kokkoscore PROPERTIES IMPORTED_LOCATION ${CMAKE_CURRENT_LIST_DIR}/libkokkoscore.a)
add_library(Kokkos::kokkos INTERFACE IMPORTED)
"""
# The compiler is not tried: it costs a second, and this is not about it.
HEAD = """cmake_minimum_required(VERSION 3.22)
set(CMAKE_CXX_COMPILER_FORCED ON)
project(likeness LANGUAGES CXX)
"""
TOOLKIT = """set(CUDAToolkit_VERSION 12.6.3)
set(CUDAToolkit_VERSION_MAJOR 12)
set(CUDAToolkit_VERSION_MINOR 6)
add_library(CUDA::cudart INTERFACE IMPORTED)
"""
# Code that names the address of a variable of its own: with -fno-pic not fit for a shared library.
ARCHIVE = "int table[4]; int* where() { return table; }\n"


def configure(folder, text, *flags, environment=None):
    (folder / "CMakeLists.txt").write_text(HEAD + text)
    command = [args.cmake, "-S", str(folder), "-B", str(folder / "build"), "-G", args.generator, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, **(environment or {})))
    return done.returncode, " ".join(done.stdout.split())


def expect(what, result, succeeds, *words):
    code, text = result
    if (code == 0) != succeeds or any(word not in text for word in words):
        sys.exit(f"{what}: exit code {code}, expected {'success' if succeeds else 'an error'} and {words}:\n{text}")
    print(what)


def kokkos_case(what, nvcc, kokkos, flag, succeeds, *words):
    """A Kokkos of version `kokkos`, whose library is compiled with `flag`; nvcc: the version its wrapper has, or ""."""
    with tempfile.TemporaryDirectory(prefix="p3d-gpu-") as name:
        folder = pathlib.Path(name)
        config, programs = folder / "lib/cmake/Kokkos", folder / "bin"
        config.mkdir(parents=True)
        programs.mkdir()
        wrapper = programs / "nvcc_wrapper"
        wrapper.write_text(WRAPPER.replace("@VERSION@", nvcc).replace("@COMPILER@", args.compiler))
        wrapper.chmod(0o755)
        (config / "KokkosConfig.cmake").write_text(KOKKOS.replace("@VERSION@", kokkos))
        (folder / "core.cpp").write_text(ARCHIVE)
        for command in ([args.compiler, flag, "-c", "core.cpp", "-o", "core.o"],
                        ["ar", "rc", str(config / "libkokkoscore.a"), "core.o"]):
            subprocess.run(command, cwd=folder, check=True)
        text = (f"include({args.source}/cmake/P3dKokkos.cmake)\np3d_check_kokkos_pic()\n"
                'message(STATUS "nvcc ${P3D_NVCC_VERSION}")\n')
        expect(what, configure(folder, text, f"-DKokkos_DIR={config}", "-DCMAKE_DISABLE_FIND_PACKAGE_KokkosKernels=ON",
                               f"-DCMAKE_CXX_COMPILER={wrapper if nvcc else args.compiler}"),
               succeeds, *(word.replace("@FOLDER@", os.path.realpath(name)) for word in words))


kokkos_case("nvcc_wrapper", "13 . 0 . 88", "4.7.1", "-fPIC", True, "nvcc 13.0.88")
kokkos_case("CUDA 12 with an older Kokkos", "12 . 9 . 86", "4.6.2", "-fPIC", True, "nvcc 12.9.86")
kokkos_case("CUDA 13 with an older Kokkos", "13 . 0 . 88", "4.7.0", "-fPIC", False,
            "Kokkos 4.7.0", "does not compile with nvcc 13.0.88", "4.7.01 or newer")
if "clang" not in os.path.basename(args.compiler):
    kokkos_case("no nvcc_wrapper", "", "5.0.0", "-fPIC", False, "does not compile for it",
                "-DCMAKE_CXX_COMPILER=@FOLDER@/bin/nvcc_wrapper")
if sys.platform == "linux":
    kokkos_case("a static Kokkos without PIC", "13 . 0 . 88", "5.0.0", "-fno-pic", False,
                "without position-independent code", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON")


def nccl_case(what, toolkit, nccl, **environment):
    """NCCL's files in the folder `nccl`, CUDA's toolkit in `toolkit`."""
    with tempfile.TemporaryDirectory(prefix="p3d-nccl-") as name:
        folder = pathlib.Path(name)
        for part in ("bin", "lib/cmake/CUDAToolkit"):
            (folder / toolkit / part).mkdir(parents=True)
        for part in ("include", "lib"):
            (folder / nccl / part).mkdir(parents=True, exist_ok=True)
        (folder / nccl / "include/nccl.h").write_text(
            "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")
        (folder / nccl / "lib/libnccl.so").write_text("")
        # A likeness of CMake's own FindCUDAToolkit, which would look for nvcc.
        (folder / "FindCUDAToolkit.cmake").write_text(
            TOOLKIT + f"set(CUDAToolkit_BIN_DIR {folder}/{toolkit}/bin)\n")
        text = (f"set(CMAKE_MODULE_PATH {folder} {args.source}/cmake)\nset(NCCL_VENDOR NCCL)\n"
                "find_package(NCCL QUIET)\n"
                'message(STATUS "NCCL ${NCCL_VERSION}: ${NCCL_LIBRARY}")\n')
        expect(what, configure(folder, text, f"-DCMAKE_CXX_COMPILER={args.compiler}",
                               environment={k: v.replace("@FOLDER@", name) for k, v in environment.items()}),
               True, f"NCCL 2.28.9: {os.path.realpath(folder / nccl)}/lib/libnccl.so")


nccl_case("NCCL in CUDA's toolkit", "cuda", "cuda")
nccl_case("NCCL of NVIDIA's HPC SDK", "sdk/cuda", "sdk/comm_libs/nccl")
nccl_case("NCCL of NVIDIA's HPC SDK, several toolkits", "sdk/cuda/12.6", "sdk/comm_libs/12.6/nccl")
nccl_case("NCCL of NVHPC_ROOT", "cuda", "sdk/comm_libs/nccl", NVHPC_ROOT="@FOLDER@/sdk")
nccl_case("NCCL of NCCL_ROOT", "cuda", "nccl", NCCL_ROOT="@FOLDER@/nccl")
