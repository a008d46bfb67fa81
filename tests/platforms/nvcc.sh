#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles by nvcc what differs most from other compilers: the files of NVIDIA's libraries, and of each room with device
# code one file with kernels. A minute; tests/platforms/cuda.sh compiles and links all there is. No GPU is needed.
#
# usage: tests/platforms/nvcc.sh <build folder> <folder to keep Kokkos' headers in> [source...]
# Ends with 77, which ctest reports as skipped, where there is no nvcc or Kokkos' headers cannot be had.
set -euo pipefail
build=$(realpath "$1") kept=$2
shift 2
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/kokkos.sh"
skip() { echo "skipped: $*"; exit 77; }

nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || skip "no nvcc"
CUDA_ROOT=$(cd "$(dirname "$(realpath "$nvcc")")/.." && pwd)
export CUDA_ROOT
(kokkos_packages "$kept" && [[ -f $kept/kokkos-cuda/about ]] || kokkos_of_headers cuda "$kept" "$kept/kokkos-cuda") ||
  skip "no headers of Kokkos"
kokkos=$kept/kokkos-cuda
echo "$("$nvcc" --version | sed -n 's/.*release.*, V/nvcc /p'), $(cat "$kokkos/about"), sm_90"

(( $# > 0 )) || set -- src/kernels/norm.cpp src/model/block.cpp src/linalg/gemm16.cpp src/linalg/batched_gemm.cpp \
  src/device/gpu.cpp src/device/event.cpp src/device/cuda_driver.cpp src/linalg/gemm_cublas.cpp \
  src/comm/nccl_library.cpp
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile_one <source>: prints what nvcc has to say about p3d's own code; any of it is an error.
compile_one() {
  local source=$1 begin=$SECONDS log
  log=$work/$(basename "$source").log
  if [[ $source == */nccl_library.cpp && ! -f $CUDA_ROOT/include/nccl.h && ! -f /usr/include/nccl.h ]]; then
    echo "$source: left out: no nccl.h"
    return 0
  fi
  # FMT_USE_CONSTEXPR: see cmake/P3dRooms.cmake
  if ! "$kokkos/bin/nvcc_wrapper" -arch=sm_90 --extended-lambda --expt-relaxed-constexpr -std=c++20 -O3 -DNDEBUG -fPIC \
      -DFMT_USE_CONSTEXPR=1 -DP3D_VENDOR_GEMM -Isrc -Iinclude -I"$build/include" -isystem "$kokkos/include/kokkos" \
      -isystem "$kokkos/include/kokkos-kernels" -isystem "$CUDA_ROOT/include" ${MPI_INCLUDE:+-isystem "$MPI_INCLUDE"} \
      -fopenmp-simd -Wall -Wextra -c "$source" -o "${log%.log}.o" > "$log" 2>&1; then
    cat "$log"
    echo "$source: FAILED"
    return 1
  fi
  if grep -E '^(src|include/p3d)/.*warning' "$log"; then
    echo "$source: WARNINGS"
    return 1
  fi
  echo "$source: compiled, $((SECONDS - begin)) s"
}
export -f compile_one
export work kokkos build
status=0
printf '%s\n' "$@" | xargs -P "${P3D_JOBS:-2}" -I '{}' bash -c 'compile_one "{}"' || status=1
exit "$status"
