#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Kokkos and Kokkos-Kernels with OpenMP into build/kokkos-openmp, from the distribution's own source package of
# Trilinos, which holds both (the distribution's binary packages have the Serial backend only). Needs no root: the
# machine's own package sources are read with their source half switched on, in a folder of ours.
#
# usage: scripts/kokkos-openmp.sh [--tsan]   --tsan: with Clang and its thread sanitizer, into build/kokkos-tsan
# P3D_TRILINOS_TARBALL=<file>: use this source tarball instead of downloading.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name=openmp
compiler=()
case ${1:-} in
  "") ;;
  --tsan)
    name=tsan
    compiler=(-DCMAKE_CXX_COMPILER=clang++ "-DCMAKE_CXX_FLAGS=-fsanitize=thread -fno-omit-frame-pointer -g1") ;;
  *) echo "unknown argument: $1" >&2; exit 2 ;;
esac
prefix=$P3D_ROOT/build/kokkos-$name
recipe=1  # raise when the options below change: an installation of another recipe is built again
stamp=$prefix/.p3d-recipe-$recipe
work=$prefix-work

say "Kokkos and Kokkos-Kernels with OpenMP in build/kokkos-$name"
if [[ -f $stamp ]]; then
  note "already there ($(cat "$stamp"))"
  exit 0
fi
rm -rf "$work" "$prefix"
mkdir -p "$work"
cleanup() { rm -rf "$work"; }
trap cleanup EXIT

# The sources of this machine with deb-src: both file styles, in folders of our own.
source_lists() {
  local apt=$work/apt file
  mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/cache/archives/partial"
  : > "$apt/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -f $file ]] || continue
    sed -n -E 's/^[[:space:]]*deb(-src)?[[:space:]]/deb-src /p' "$file" >> "$apt/sources.list"
  done
  sort -u -o "$apt/sources.list" "$apt/sources.list"
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f $file ]] || continue
    sed -E 's/^Types:.*/Types: deb-src/' "$file" > "$apt/parts/$(basename "$file")"
  done
}
apt_here() {
  apt-get -q -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts="$work/apt/parts" \
    -o Dir::State::Lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" "$@"
}

# The version must be that of the binary packages, so that both test legs run the same Kokkos.
version=$(dpkg-query -W -f '${source:Version}' libtrilinos-kokkos-dev 2>/dev/null || true)
if [[ -n ${P3D_TRILINOS_TARBALL:-} ]]; then
  tarball=$P3D_TRILINOS_TARBALL
  note "source: $tarball"
else
  note "download the source package of trilinos${version:+ $version} (about 170 MB)"
  source_lists
  # A site's other sources may have no source half: their errors do not matter if trilinos is found.
  apt_here update > "$work/apt-update.log" 2>&1 || note "apt-get update had complaints; going on"
  if ! (cd "$work" && apt_here source --download-only "trilinos${version:+=$version}" > apt-source.log 2>&1 ||
        apt_here source --download-only trilinos > apt-source.log 2>&1); then
    tail -n 20 "$work/apt-update.log" "$work/apt-source.log" >&2
    fail "the source package of trilinos could not be downloaded (see above)"
  fi
  tarball=$(find "$work" -maxdepth 1 -name 'trilinos_*.orig.tar.*' ! -name '*.asc' | head -n 1)
fi
[[ -f $tarball ]] || fail "no source tarball of trilinos in $work"

note "unpack packages/kokkos and packages/kokkos-kernels"
mkdir "$work/src"
tar -xf "$tarball" -C "$work/src" --strip-components=2 --wildcards '*/packages/kokkos/*' '*/packages/kokkos-kernels/*'

build_and_install() {
  local name=$1
  shift
  note "build $name ($JOBS jobs)"
  quietly "$work/$name-configure.log" cmake -G Ninja -S "$work/src/$name" -B "$work/$name" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_STANDARD=17 -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_RPATH="$prefix/lib" -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON "${compiler[@]}" "$@"
  quietly "$work/$name-build.log" cmake --build "$work/$name" -j "$JOBS"
  quietly "$work/$name-install.log" cmake --install "$work/$name"
}
build_and_install kokkos -DKokkos_CXX_STANDARD=17 -DKokkos_ENABLE_OPENMP=ON -DKokkos_ENABLE_SERIAL=ON \
  -DKokkos_ENABLE_TESTS=OFF
# Without default instantiations: they take over ten minutes, and p3d uses none of them.
build_and_install kokkos-kernels -DKokkos_ROOT="$prefix" -DKokkosKernels_ADD_DEFAULT_ETI=OFF \
  -DKokkosKernels_ENABLE_TPL_BLAS=ON -DKokkosKernels_ENABLE_TESTS=OFF

echo "trilinos ${version:-of $(basename "$tarball")}" > "$stamp"
note "installed; the sources are removed again"
