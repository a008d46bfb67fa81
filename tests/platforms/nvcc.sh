#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles by nvcc what differs most from other compilers: the files of NVIDIA's libraries, and of each room with device
# code one file with kernels. All other kernels, and the rooms above them up to engine, are read by its front end, many
# files as one source: that finds what nvcc forbids or misunderstands. Two minutes on two cores; tests/platforms/cuda.sh
# compiles and links all there is. No GPU is needed.
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

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# read_by_front_end <name> <file...>: makes the source $work/<name>.cpp of them.
read_by_front_end() {
  local name=$1
  shift
  printf '#include "%s"\n' "${@#src/}" > "$work/$name.cpp"
  read_only+=("$work/$name.cpp")
}
read_only=()
if (( $# == 0 )); then
  mapfile -t files < <(find src/kernels src/linalg src/device -name '*.cpp' | sort |
    grep -v -E '/(onednn_s?gemm|gemm_(cublas|rocblas|onemkl)|attention_cudnn|cuda_driver)\.cpp$')
  attention=() others=()
  for file in "${files[@]}"; do
    if [[ $file == */attention* ]]; then attention+=("$file"); else others+=("$file"); fi
  done
  read_by_front_end attention "${attention[@]}"
  read_by_front_end others "${others[@]}"
  # The rooms above kernels, whose templates take device code along. One source for each: names of files may be alike.
  for room in collectives parallel model optim engine; do
    mapfile -t files < <(find "src/$room" -name '*.cpp' | sort)
    read_by_front_end "room_$room" "${files[@]}"
  done
fi
(( $# > 0 )) || set -- "${read_only[@]}" src/kernels/norm.cpp src/model/block.cpp src/linalg/gemm16.cpp \
  src/device/gpu.cpp src/device/event.cpp src/device/cuda_driver.cpp src/linalg/gemm_cublas.cpp \
  src/comm/nccl_library.cpp

# compile_one <source>: prints what nvcc has to say about p3d's own code; any of it is an error.
compile_one() {
  local source=$1 begin=$SECONDS log more=()
  log=$work/$(basename "$source").log
  if [[ $source == "$work"/* ]]; then
    export NVCC_APPEND_FLAGS=--fdevice-syntax-only
    more=(-fsyntax-only)
  fi
  if [[ $source == */nccl_library.cpp && ! -f $CUDA_ROOT/include/nccl.h && ! -f /usr/include/nccl.h ]]; then
    echo "$source: left out: no nccl.h"
    return 0
  fi
  # FMT_USE_CONSTEXPR: see cmake/P3dRooms.cmake
  if ! "$kokkos/bin/nvcc_wrapper" -arch=sm_90 --extended-lambda --expt-relaxed-constexpr -std=c++20 -O3 -DNDEBUG -fPIC \
      -DFMT_USE_CONSTEXPR=1 -DP3D_VENDOR_GEMM -Isrc -Iinclude -I"$build/include" -isystem "$kokkos/include/kokkos" \
      -isystem "$kokkos/include/kokkos-kernels" -isystem "$CUDA_ROOT/include" ${MPI_INCLUDE:+-isystem "$MPI_INCLUDE"} \
      -fopenmp-simd -Wall -Wextra ${more[@]+"${more[@]}"} -c "$source" -o "${log%.log}.o" > "$log" 2>&1; then
    cat "$log"
    echo "$source: FAILED"
    return 1
  fi
  if grep -E '^(src|include/p3d)/.*warning' "$log"; then
    echo "$source: WARNINGS"
    return 1
  fi
  echo "${source#"$work"/}: $([[ $source == "$work"/* ]] && echo read || echo compiled), $((SECONDS - begin)) s"
}
export -f compile_one
export work kokkos build
status=0
printf '%s\n' "$@" | xargs -P "${P3D_JOBS:-2}" -I '{}' bash -c 'compile_one "{}"' || status=1
exit "$status"
