# SPDX-License-Identifier: Apache-2.0
"""Words that must not appear: addresses to download from in anything that runs, and vendors' names in portable
sources."""
import re

import source_tree

# Anything that could fetch, configure or compile. Prose (README, CHANGELOG, LICENSE) may link where it likes.
RUNNING = ["include", "src", "scripts", "cmake", ".ci", "tests", "benchmarks", "spack", "CMakeLists.txt",
           "CMakePresets.json"]
PORTABLE = ["include", "src"]
ADDRESS = re.compile(r"\b(?:https?|ftp|git|ssh|file)://([\w.-]+)")
HOST = re.compile(r"\b(?:deb|security|archive|ports|mirrors?|registry|index|pypi|files|crates|hub|ghcr|quay|repo)"
                  r"\.[\w-]+(?:\.[\w-]+)*\.(?:org|com|io|net|dev)\b")
# Papers, specifications, the XML namespace of a picture, the placeholder of CMakeLists.txt.
CITED = {"arxiv.org", "doi.org", "toml.io", "www.w3.org", "example.org"}
VENDOR = re.compile(r"\bcuda(?=[A-Z_])\w*|\bhip(?=[A-Z])\w*|\b(?:cu|hip|roc)blas\w*|__CUDA\w*|__HIP\w*"
                    r"|__global__|__device__|__shared__"
                    r"|\bKokkos::(?:Experimental::)?(?:Cuda|HIP|SYCL)\w*|\w*_(?:cuda|hip|rocm|ze)_\w*"
                    r"|\b[nr]ccl[A-Z]\w*|\bsycl::|#\s*include\s*<(?:cuda|hip|sycl)")
# Where the difference between vendors is dealt with: one file for each library that has one.
VENDOR_FILES = {"include/p3d/base/host_device.hpp", "include/p3d/base/random.hpp", "src/comm/gpu.cpp",
                "src/comm/nccl_calls.cpp", "src/comm/nccl_engine.cpp", "src/comm/nccl_library.cpp",
                "src/comm/nccl_vendor.hpp", "src/device/cuda_driver.cpp", "src/device/gpu.cpp",
                "src/kernels/attention_cudnn.cpp", "src/linalg/gemm_cublas.cpp", "src/linalg/gemm_onemkl.cpp",
                "src/linalg/gemm_rocblas.cpp"}


def hits(root, path, pattern):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        for match in pattern.finditer(line):
            yield f"{path.relative_to(root)}:{number}", match


def check(root):
    found = []
    for path in source_tree.files(root, RUNNING):
        if path.suffix in {".bin", ".h5"}:
            continue
        for where, match in hits(root, path, ADDRESS):
            if match.group(1) not in CITED:
                found.append(f"{where}: address {match.group(0)}: nothing is downloaded from a named place")
        for where, match in hits(root, path, HOST):
            found.append(f"{where}: host {match.group(0)}: nothing is downloaded from a named place")
    for path in source_tree.files(root, PORTABLE, source_tree.CPP):
        if str(path.relative_to(root)) in VENDOR_FILES:
            continue
        for where, match in hits(root, path, VENDOR):
            found.append(f"{where}: {match.group(0)}: one vendor's name; Kokkos has a portable one")
    return found


if __name__ == "__main__":
    source_tree.main(check)
