#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads p3d's rooms with Kokkos as a build for Intel's GPUs does, as far as that goes without Intel's compiler, which no
# package index has: the host's half of each file is compiled by g++ against the headers of DPC++, oneMKL and of a
# Kokkos for SYCL. What only device code shows, icpx alone finds. No GPU is needed, nothing is run.
#
# usage: tests/platforms/sycl.sh [--rooms "device linalg kernels"] [-j jobs] [source...]
# DPC++'s and oneMKL's headers: Python's packages intel-sycl-rt, onemkl-sycl-include and mkl-include. Kokkos: see
# kokkos.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/kokkos.sh"

rooms="device linalg kernels collectives optim parallel model engine" sources=()
while (( $# > 0 )); do
  case $1 in
    --rooms) rooms=${2:?rooms}; shift 2 ;;
    -j) JOBS=${2:?a number}; shift 2 ;;
    -*) sed -n '7,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *) sources+=("$1"); shift ;;
  esac
done
if (( ${#sources[@]} == 0 )); then
  for room in $rooms; do
    # Other vendors' files, and oneDNN's, are not part of a build for SYCL.
    mapfile -t -O "${#sources[@]}" sources < <(find "src/$room" -name '*.cpp' | sort |
      grep -v -E '/(gemm_cublas|gemm_rocblas|onednn_s?gemm|attention_cudnn|cuda_driver)\.cpp$')
  done
fi

work=${P3D_SYCL_WORK:-$P3D_ROOT/build/platforms/sycl}
mkdir -p "$work"
if [[ ! -f $work/headers/sycl/sycl.hpp || ! -f $work/headers/mkl_types.h ]]; then
  note "the headers of DPC++ and oneMKL from Python's package index (170 MB)"
  rm -rf "$work/wheels"
  quietly "$work/wheels.log" python3 -m pip download --no-deps --only-binary :all: -d "$work/wheels" intel-sycl-rt \
    onemkl-sycl-include mkl-include
  ls "$work/wheels" > "$work/about"
  for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/wheels/files"; done
  mkdir -p "$work/headers"
  cp -r "$work"/wheels/files/*/data/include/. "$work/headers/"
  rm -rf "$work/wheels"
fi
kokkos_packages "$work/packages"
kokkos_of_headers sycl "$work/packages" "$work/kokkos"
# Kokkos' atomics ask by this macro whether SYCL is there. DPC++'s headers would take it for their own compiler.
cat > "$work/prelude.hpp" <<'HEADER'
#include <oneapi/mkl/blas.hpp>
#include <sycl/sycl.hpp>
#define SYCL_LANGUAGE_VERSION 202012
HEADER
# What p3d's own headers need of a build, which any build has.
[[ -d $work/p3d/include ]] ||
  quietly "$work/configure.log" cmake -S "$P3D_ROOT" -B "$work/p3d" -G Ninja -DP3D_BUILD_TESTS=OFF

say "$(paste -sd' ' "$work/about" | sed 's/-py[^ ]*//g'); $(cat "$work/kokkos/about"); $(g++ --version | head -n 1)"
compile_one() {
  local source=$1 log
  log=$work/$(tr / _ <<< "$source").log
  if g++ -std=c++20 -O0 -c -o /dev/null -include "$work/prelude.hpp" -DP3D_VENDOR_GEMM -Isrc -Iinclude \
      -I"$work/p3d/include" -isystem "$work/kokkos/include/kokkos" -isystem "$work/kokkos/include/kokkos-kernels" \
      -isystem "$work/headers" ${MPI_INCLUDE:+-isystem "$MPI_INCLUDE"} -fopenmp-simd -Wall -Wextra "$source" \
      > "$log" 2>&1; then
    if grep -q -E '^(src|include/p3d)/.*warning' "$log"; then
      echo "   $source: $(grep -m 1 -E '^(src|include/p3d)/.*warning' "$log")"
    else
      echo "   $source"
    fi
  else
    echo "   $source: FAILED: $(grep -m 1 -E 'error' "$log")"
    return 1
  fi
}
export -f compile_one
export work
MPI_INCLUDE=$(mpicxx -show 2>/dev/null | grep -o -m 1 -E -- '-I[^ ]+' | head -n 1 | cut -c3- || true)
export MPI_INCLUDE
begin=$SECONDS status=0
printf '%s\n' "${sources[@]}" | xargs -P "$JOBS" -I '{}' bash -c 'compile_one "{}"' > "$work/result" || status=1
cat "$work/result"
say "$(grep -c -v FAILED "$work/result" || true) of ${#sources[@]} files compiled (host's half), $((SECONDS - begin)) s"
exit "$status"
