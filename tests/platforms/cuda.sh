#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles and links all of p3d and its tests for NVIDIA's GPUs. No GPU and no driver are needed; nothing is run on one.
#
# usage: tests/platforms/cuda.sh [--only kokkos|program|tests|sass]... [--arch 80|90]... [--wheels] [--chroot] [-j jobs]
#   kokkos    the CUDA toolkit, Kokkos and Kokkos-Kernels (tests/platforms/kokkos.sh)
#   program   libp3d, p3d, and what stands beside it
#   tests     all tests, and the benchmarks
#   sass      registers, spills, tensor-core instructions and constant-memory launches of the kernels (sass.py)
#   --arch    sm_80 and sm_90 unless named; --wheels: CUDA of Python's packages, also where the machine has its own
#   --chroot  in a fresh Debian 12 (needs root and debootstrap)
# All is kept in build/platforms/cuda (P3D_CUDA_WORK): a second call goes on where the first one ended.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"
source "$(dirname "${BASH_SOURCE[0]}")/kokkos.sh"

usage() { sed -n '5,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
parts=() archs=() wheels='' chroot='' args=("$@")
while (( $# > 0 )); do
  case $1 in
    --only) parts+=("${2:-}"); shift 2 || { usage >&2; exit 2; } ;;
    --arch) archs+=("${2:-}"); shift 2 || { usage >&2; exit 2; } ;;
    --wheels) wheels=1; shift ;;
    --chroot) chroot=1; shift ;;
    -j) JOBS=${2:-}; shift 2 || { usage >&2; exit 2; } ;;
    -h|--help) usage; exit 0 ;;
    *) echo "unknown argument: $1" >&2; usage >&2; exit 2 ;;
  esac
done
(( ${#parts[@]} > 0 )) || parts=(kokkos program tests sass)
(( ${#archs[@]} > 0 )) || archs=(80 90)
for part in "${parts[@]}"; do
  [[ $part =~ ^(kokkos|program|tests|sass)$ ]] || { echo "unknown part: '$part'" >&2; usage >&2; exit 2; }
done
for arch in "${archs[@]}"; do
  [[ $arch =~ ^[0-9]+$ ]] || { echo "not an architecture: '$arch' (80, 90)" >&2; exit 2; }
done
wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

if [[ -n $chroot ]]; then
  root=$P3D_CHROOTS/cuda-chroot
  say "Debian 12 in $root"
  make_chroot bookworm "$root" g++ cmake ninja-build git python3 python3-pip mpich libhdf5-mpich-dev libopenblas-dev \
    libtomlplusplus-dev libcli11-dev libfmt-dev librandom123-dev libxxhash-dev libgtest-dev nlohmann-json3-dev \
    libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libsentencepiece-dev
  filtered=()
  for arg in "${args[@]}"; do [[ $arg == --chroot ]] || filtered+=("$arg"); done
  inside "$root" env P3D_CUDA_WORK=/build bash tests/platforms/cuda.sh "${filtered[@]}"
  exit
fi

work=${P3D_CUDA_WORK:-$P3D_ROOT/build/platforms/cuda}
mkdir -p "$work"
packages=$work/packages toolkit=$work/toolkit kokkos=$work/kokkos build=$work/p3d

# The machine's toolkit, or NVIDIA's wheels laid out like one: libraries by their names without a version, lib64.
find_toolkit() {
  local nvcc file
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
  if [[ -z $wheels && -n $nvcc ]]; then
    ln -sfn "$(cd "$(dirname "$(realpath "$nvcc")")/.." && pwd)" "$toolkit"
  elif [[ ! -f $work/wheels/complete ]]; then
    note "NVIDIA's wheels from Python's package index (about 900 MB)"
    rm -rf "$work/wheels"
    quietly "$work/wheels.log" python3 -m pip install --no-deps --only-binary :all: --target "$work/wheels" \
      nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cublas \
      nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm nvidia-nccl-cu13
    for file in "$work"/wheels/nvidia/*/lib/lib*.so.*; do ln -sf "$(basename "$file")" "${file%%.so.*}.so"; done
    ln -sfn lib "$work/wheels/nvidia/cu13/lib64"
    touch "$work/wheels/complete"
  fi
  if [[ -f $work/wheels/complete && ( -n $wheels || -z $nvcc ) ]]; then
    ln -sfn "$work/wheels/nvidia/cu13" "$toolkit"
    export NCCL_ROOT=$work/wheels/nvidia/nccl
  fi
  CUDA_ROOT=$(realpath "$toolkit")
  PATH=$CUDA_ROOT/bin:$PATH
  export PATH CUDA_ROOT
}

# nvcc_wrapper takes one architecture; nvcc itself reads the others from its environment.
NVCC_APPEND_FLAGS=
for arch in "${archs[@]:1}"; do NVCC_APPEND_FLAGS+="-gencode arch=compute_$arch,code=sm_$arch "; done
export NVCC_APPEND_FLAGS
arch_flag=-arch=sm_${archs[0]}

# The name that Kokkos has for the first architecture, which its own flags ask for.
kokkos_arch() {
  case ${archs[0]} in
    70) echo VOLTA70 ;;
    80 | 86) echo "AMPERE${archs[0]}" ;;
    90) echo HOPPER90 ;;
    100 | 120) echo "BLACKWELL${archs[0]}" ;;
    *) fail "Kokkos' name of sm_${archs[0]} is not known here (70, 80, 86, 90, 100, 120)" ;;
  esac
}

make_kokkos() {
  local file
  kokkos_packages "$packages"
  if kokkos_source "$packages" "$work/source"; then
    kokkos_of_source cuda "$work/source" "$kokkos" "$work/source/kokkos/bin/nvcc_wrapper" \
      "-DKokkos_ARCH_$(kokkos_arch)=ON"
  else
    kokkos_of_headers cuda "$packages" "$kokkos"
    # What Kokkos-Kernels' library has of cuBLAS stands in a header.
    file=$work/kokkos_cublas.cpp
    printf '#include <%s>\n' Kokkos_Core.hpp KokkosKernels_config.h KokkosBlas_Cuda_tpl.hpp > "$file"
    quietly "$work/kernels.log" "$kokkos/bin/nvcc_wrapper" "$arch_flag" -std=c++20 -O3 -fPIC --extended-lambda \
      --expt-relaxed-constexpr -isystem "$kokkos/include/kokkos" -isystem "$kokkos/include/kokkos-kernels" \
      -c "$file" -o "$work/kokkos_cublas.o"
    ar rc "$kokkos/lib/libkokkoskernels.a" "$work/kokkos_cublas.o"
    # shellcheck disable=SC2016
    echo 'target_link_libraries(Kokkos::kokkoskernels INTERFACE ${prefix}/lib/libkokkoskernels.a CUDA::cublas)' \
      >> "$kokkos/lib/cmake/KokkosKernels/KokkosKernelsConfig.cmake"
  fi
}

configure() {
  local options=()
  if [[ ! -f $kokkos/lib/libkokkoscore.a ]]; then
    # Where functions may be open, CMake would find that BLAS needs no library: it is named.
    options=(-DP3D_GPU_FLAGS="$arch_flag" -DBLA_VENDOR=OpenBLAS
      "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--unresolved-symbols=ignore-all")
  fi
  quietly "$work/configure.log" cmake -S "$P3D_ROOT" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$kokkos/bin/nvcc_wrapper" -DCMAKE_PREFIX_PATH="$kokkos" -DCUDAToolkit_ROOT="$CUDA_ROOT" \
    -DP3D_NATIVE_ARCH=ON -DP3D_CHECK_HEADERS=OFF -DP3D_NCCL=ON -DP3D_BUILD_BENCHMARKS=ON -DCMAKE_UNITY_BUILD=ON \
    "${options[@]}"
  grep -E '^--   (C\+\+20 compiler|nvcc|Kokkos|cuBLAS|NCCL|cuDNN|MPI)' "$work/configure.log" | sed 's/^-- //'
}

# Only Kokkos' own functions may be open, and only where there is no library of it. The loader looks through all
# libraries.
check_open() {
  local file open
  [[ ! -f $kokkos/lib/libkokkoscore.a ]] || return 0
  for file; do
    # CMake gives no path to a toolkit's libraries where nvcc finds them by itself; a user's modules do.
    open=$(LD_LIBRARY_PATH=$CUDA_ROOT/lib64 ldd -r "$file" 2>&1 |
      sed -n -E 's/^undefined symbol: ([^[:space:]]+).*/\1/p' | sort -u | c++filt |
      grep -v -E '^(Kokkos|desul)::|^(typeinfo|vtable|typeinfo name) for Kokkos::' || true)
    [[ -z $open ]] || { printf '%s\n' "$open" | head -n 20 >&2; fail "$file: undefined, and not Kokkos' own"; }
  done
}

build_program() {
  quietly "$work/program.log" cmake --build "$build" -j "$JOBS" --target p3d p3d_app -- -k 0
  check_open "$build/lib/libp3d.so" "$build/p3d"
}
build_tests() {
  quietly "$work/tests.log" cmake --build "$build" -j "$JOBS" -- -k 0
  check_open "$build"/tests/bin/*
  note "$(find "$build/tests/bin" -type f -perm -u+x | wc -l) programs of tests are linked"
}
read_sass() {
  local tools=$CUDA_ROOT/bin
  if [[ ! -x $tools/cuobjdump || ! -x $tools/nvdisasm ]]; then
    tools=$work/tools/nvidia/cu13/bin
    [[ -x $tools/cuobjdump ]] || quietly "$work/tools.log" python3 -m pip install --no-deps --only-binary :all: \
      --target "$work/tools" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
  fi
  python3 -B "$P3D_ROOT/tests/platforms/sass.py" --build "$build" --tools "$tools" --arch "${archs[@]}" --limits \
    > "$work/sass.txt" || { grep -A 100000 'most registers' "$work/sass.txt" | head -n 60; fail "see $work/sass.txt"; }
  grep -E '^(sm_|calls)' "$work/sass.txt"
  note "kernel by kernel: $work/sass.txt"
}

find_toolkit
say "CUDA: $(nvcc --version | sed -n 's/.*release.*, V/nvcc /p') in $CUDA_ROOT, $(g++ --version | head -n 1)"
if wanted kokkos; then timed kokkos make_kokkos; fi
[[ -f $kokkos/about ]] || fail "no Kokkos in $kokkos: --only kokkos comes first"
note "$(cat "$kokkos/about")"
if wanted program || wanted tests; then configure; fi
if wanted program; then say "Program for ${archs[*]/#/sm_} ($JOBS jobs)"; timed program build_program; fi
if wanted tests; then say "Tests for ${archs[*]/#/sm_} ($JOBS jobs)"; timed tests build_tests; fi
if wanted sass; then say "Kernels"; timed sass read_sass; fi
say "Summary"
note "$(nvcc --version | sed -n 's/.*release.*, V/nvcc /p'); $(cat "$kokkos/about"); ${archs[*]/#/sm_}"
for line in "${summary[@]}"; do note "$line"; done
