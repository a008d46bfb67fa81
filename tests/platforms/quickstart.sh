#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a new user of another Debian or Ubuntu does: in a bare system of its own below build/platforms, clones this
# checkout's HEAD and runs scripts/quickstart.sh there. With --tests it then builds the tests, warnings being errors,
# and runs those of the kernels and of the reference models. Needs root (for chroot and mounts) and debootstrap.
#
# usage: tests/platforms/quickstart.sh SUITE [--tests] [key=value ...]     for example: trixie run.steps=40
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"

suite=${1:?usage: tests/platforms/quickstart.sh SUITE [--tests] [key=value ...]}
shift
tests=
if [[ ${1:-} == --tests ]]; then
  tests=yes
  shift
fi
root=$P3D_CHROOTS/$suite
say "Bare $suite in $root"
make_chroot "$suite" "$root"
rm -rf "$root/clone.new"
git clone -q --no-hardlinks "$P3D_ROOT" "$root/clone.new"
mkdir -p "$root/clone"
cp -a "$root/clone/build" "$root/clone.new/" 2>/dev/null || true  # of a run before
rm -rf "$root/clone"
mv "$root/clone.new" "$root/clone"
git -C "$root/clone" log -1 --format='   commit %h'

inside "$root" /clone/scripts/quickstart.sh "$@"
[[ -n $tests ]] || exit 0

say "Tests of kernels and reference models"
inside "$root" sh -c 'set -e; cd /clone; cmake --preset release -DP3D_WERROR=ON -DP3D_BUILD_TESTS=ON
  cmake --build --preset release -j '"$JOBS"'; ctest --preset release -R "^(kernels|golden|linalg|device|unit_)"'
