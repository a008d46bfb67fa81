# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts here: a small Debian in a folder, with packages of its own. Needs root and debootstrap.
# shellcheck shell=bash

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
P3D_CHROOTS=${P3D_CHROOTS:-$P3D_ROOT/build/platforms}

# make_chroot <suite> <folder> [package...]: makes the folder unless it is there, installs the packages missing in it.
make_chroot() {
  local suite=$1 folder=$2
  shift 2
  (( $(id -u) == 0 )) || fail "root is needed to make and enter $folder"
  command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
  if [[ ! -f $folder/.p3d-complete ]]; then
    note "debootstrap $suite into $folder"
    rm -rf "$folder"
    mkdir -p "$folder"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder" > "$folder.log" 2>&1 ||
      { tail -n 20 "$folder.log" >&2; fail "debootstrap failed"; }
    # A mirror of a distribution that moves may lag behind.
    [[ $suite != unstable ]] || echo 'Acquire::Check-Valid-Until "false";' > "$folder/etc/apt/apt.conf.d/90valid"
    touch "$folder/.p3d-complete"
  fi
  cp /etc/resolv.conf "$folder/etc/"
  # shellcheck disable=SC2016
  (( $# == 0 )) || inside "$folder" sh -c 'dpkg -s "$@" > /dev/null 2>&1 || {
    apt-get -q update && apt-get -q install -y --no-install-recommends "$@"; }' sh "$@" > "$folder.log" 2>&1 ||
    { tail -n 20 "$folder.log" >&2; fail "the packages could not be installed"; }
  # A site that looks into its own traffic has a certificate of its own, which the machine knows, and pip must too.
  if [[ -f /etc/ssl/certs/ca-certificates.crt ]]; then
    cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' > "$folder/etc/pip.conf"
  fi
}

# inside <folder> <command...>: runs the command there, in /p3d, which is this source tree. The mounts end with it.
inside() {
  # shellcheck disable=SC2016
  unshare --mount sh -c 'set -e
    root=$1 source=$2
    shift 2
    mkdir -p "$root/p3d"
    mount --bind "$source" "$root/p3d"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
      DEBIAN_FRONTEND=noninteractive ${P3D_JOBS:+P3D_JOBS=$P3D_JOBS} sh -c "cd /p3d && exec \"\$@\"" sh "$@"' \
    sh "$1" "$P3D_ROOT" "${@:2}"
}
