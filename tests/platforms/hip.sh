#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles p3d for AMD's GPUs with Debian's hipcc and rocBLAS, in a folder of Debian's unstable distribution: Debian
# 12's are too old for Kokkos. Without RCCL, which does not go with that hipcc; nccl.sh compiles its calls. No GPU is
# needed, and nothing is run on one. Needs root and debootstrap.
#
# usage: tests/platforms/hip.sh [--arch gfx90a] [--wanted <target>] [-j jobs]
# Goes on after a file that does not compile: the end lists those, each with its first error. Kokkos: see kokkos.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"
source "$(dirname "${BASH_SOURCE[0]}")/kokkos.sh"

arch=gfx90a targets=(p3d p3d_app)
while (( $# > 0 )); do
  case $1 in
    --arch) arch=${2:?an architecture}; shift 2 ;;
    --wanted) targets=("${2:?a target}"); shift 2 ;;
    -j) JOBS=${2:?a number}; shift 2 ;;
    *) sed -n '7,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done

root=$P3D_CHROOTS/hip
say "Debian unstable with hipcc in $root"
make_chroot unstable "$root" g++ cmake ninja-build git python3 mpich libhdf5-mpich-dev libopenblas-dev \
  libtomlplusplus-dev libcli11-dev libfmt-dev librandom123-dev libxxhash-dev nlohmann-json3-dev libpcre2-dev \
  libutf8proc-dev zlib1g-dev libzstd-dev libgtest-dev hipcc librocblas-dev
begin=$SECONDS
kokkos_packages "$P3D_CHROOTS/kokkos-packages"
mkdir -p "$root/build"
kokkos_of_headers hip "$P3D_CHROOTS/kokkos-packages" "$root/build/kokkos"
versions="$(inside "$root" sh -c 'hipcc --version | head -n 1; dpkg-query -W -f "\${Package} \${Version}\n" \
  librocblas-dev' | paste -sd, | sed 's/,/, /g')"
note "$versions; $(cat "$root/build/kokkos/about"); $arch"

quietly "$root/build/configure.log" inside "$root" cmake -S /p3d -B /build/p3d -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER=hipcc -DCMAKE_PREFIX_PATH=/build/kokkos -DP3D_GPU_FLAGS=--offload-arch="$arch" \
  -DP3D_BUILD_TESTS=OFF -DP3D_NCCL=OFF -DBLA_VENDOR=OpenBLAS \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_EXE_LINKER_FLAGS=-Wl,--unresolved-symbols=ignore-all
say "Compile ($JOBS jobs)"
status=0
inside "$root" cmake --build /build/p3d -j "$JOBS" --target "${targets[@]}" -- -k 0 > "$root/build/build.log" 2>&1 ||
  status=$?
say "Result ($((SECONDS - begin)) s): $versions; $(cat "$root/build/kokkos/about"); $arch"
note "$(grep -c -E '^\[[0-9/]+\] (Building|Linking)' "$root/build/build.log" || true) of $(sed -n -E \
  's|^\[[0-9]+/([0-9]+)\].*|\1|p' "$root/build/build.log" | tail -n 1) steps"
# Ninja prints FAILED before what the compiler has to say.
awk '/^FAILED: / { file = $2; next } file != "" && /error:/ { print "   " file "\n      " $0; file = "" }' \
  "$root/build/build.log"
exit "$status"
