#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian or Ubuntu packages that p3d builds and tests with. Uses sudo only for that, and only when not
# root; does nothing when all are there. Elsewhere (Spack, modules): see docs/install.md; cmake tells what is missing.
#
# usage: scripts/install-deps.sh [--tests | --tsan]     --tests: also what only tests need; --tsan: and those of the
# thread-sanitizer leg
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(
  g++ cmake ninja-build ccache git python3        # to build; git and python3 also for tests
  mpich libmpich-dev                              # messages between ranks
  libhdf5-mpich-dev                               # checkpoints
  libtrilinos-kokkos-dev libtrilinos-kokkos-kernels-dev libopenblas-dev  # kernels and GEMMs
  libdnnl-dev ocl-icd-opencl-dev                  # optional: GEMMs of bfloat16 (its CMake files want both)
  libtomlplusplus-dev libcli11-dev libfmt-dev librandom123-dev libxxhash-dev
  nlohmann-json3-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev  # tokenizers, models and texts in files
  libsentencepiece-dev                            # optional: tokenizers in .model files
  libgtest-dev
)
case ${1:-} in
  "") ;;
  --tests)
    packages+=(slurm-wlm munge)            # a real srun
    packages+=(python3-h5py)               # a reader of checkpoints that is not p3d's
    packages+=(iproute2 mount util-linux)  # hosts in namespaces
    packages+=(mkdocs doxygen)             # docs/ and the public headers as sites
    # The versions that the lint tests ask; releases without them skip these tests.
    for package in clang-format-14 clang-tidy-14; do
      if apt-cache show "$package" >/dev/null 2>&1; then packages+=("$package"); fi
    done ;;
  --tsan) packages+=(clang libomp-dev) ;;  # libomp tells the sanitizer when threads wait for each other
  *) echo "unknown argument: $1" >&2; exit 2 ;;
esac

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || echo "$package"
  done
}

say "Packages: ${#packages[@]} are needed"
command -v dpkg-query >/dev/null \
  || fail "this machine has no dpkg. Install what docs/install.md lists with Spack or your site's modules."
mapfile -t missing < <(missing_packages)
if (( ${#missing[@]} == 0 )); then
  note "all are installed"
  exit 0
fi
note "to install: ${missing[*]}"

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || fail "not root, and no sudo. Ask an administrator for: apt-get install ${missing[*]}"
  as_root=(sudo)
  note "using sudo, for apt-get only"
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@"; }

# The lists may be missing or too old: update when a package is unknown, or when the installation fails.
if ! apt-cache show "${missing[@]}" >/dev/null 2>&1; then
  note "package lists are missing or old: apt-get update"
  apt update
fi
if ! apt install -y --no-install-recommends "${missing[@]}"; then
  note "once more after apt-get update"
  apt update
  apt install -y --no-install-recommends "${missing[@]}"
fi
mapfile -t missing < <(missing_packages)
(( ${#missing[@]} == 0 )) || fail "apt-get succeeded, but these are still not installed: ${missing[*]}"
note "installed"
