#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# small_shm_test.sh PROGRAM MPIEXEC [FLAGS] -n : runs comm_many_groups on 4 ranks where /dev/shm has 40 MiB, in a mount
# namespace of its own. Exit code 77: not permitted here.
program=$1
shift
inside='mount -t tmpfs -o size=40m p3d-test /dev/shm || exit 77
        P3D_SMALL_SHM=1 exec "$@"'
unshare --mount true 2> /dev/null || { echo "skipped: this user may not make a mount namespace"; exit 77; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
unshare --mount sh -c "$inside" sh "$@" 4 "$program" > "$log" 2>&1 < /dev/null
code=$?
cat "$log"
[ "$code" -ne 77 ] || { echo "skipped: this user may not mount a tmpfs"; exit 77; }
[ "$code" -eq 0 ] || { echo "FAILED: exit code $code"; exit 1; }
grep -q 'OK ] ManyGroups.AFullShmIsAnAnswer' "$log" || { echo "FAILED: the test did not run"; exit 1; }
