#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds p3d with Debian 12's Open MPI 4.1, in a folder of its own below build/platforms, and runs the tests that
# start ranks. Needs root (for chroot and mounts) and debootstrap.
#
# usage: tests/platforms/openmpi.sh [ctest arguments]      for example: -R comm_
# (without arguments: -L 'mpi|golden|invariance|app|restart')
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"

root=$P3D_CHROOTS/openmpi
say "Debian 12 with Open MPI in $root"
make_chroot bookworm "$root" g++ cmake ninja-build git python3 python3-h5py procps openmpi-bin libopenmpi-dev \
  libhdf5-openmpi-dev libtrilinos-kokkos-dev libtrilinos-kokkos-kernels-dev libopenblas-dev libtomlplusplus-dev \
  libcli11-dev libfmt-dev librandom123-dev libxxhash-dev libgtest-dev
  nlohmann-json3-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libsentencepiece-dev

say "Build ($JOBS jobs)"
inside "$root" cmake -S /p3d -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DP3D_NATIVE_ARCH=ON -DP3D_WERROR=ON \
  -DP3D_CHECK_HEADERS=OFF -DCMAKE_UNITY_BUILD=ON
inside "$root" cmake --build /build -j "$JOBS"

say "Test"
(( $# > 0 )) || set -- -L 'mpi|golden|invariance|app|restart'
inside "$root" ctest --test-dir /build --output-on-failure -j "$(processors)" "$@"
