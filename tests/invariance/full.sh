#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole matrix: every (dp, tp, pp) with product 1 to 8, every order, both schedules, five models, in fp64, fp32 and
# with dropout. Takes about half an hour on 4 cores; prints one line per layout and a summary line per run.
#
#   tests/invariance/full.sh [path of the invariance program] [ranks...]
set -euo pipefail
program=${1:-build/release/tests/bin/invariance}
shift || true
ranks=${*:-1 2 3 4 5 6 7 8}
failed=0
for n in $ranks; do
  for options in "--precision fp64" "--precision fp32" "--precision fp64 --dropout 0.1" \
                 "--precision fp32 --dropout 0.1"; do
    # shellcheck disable=SC2086
    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 mpiexec -n "$n" "$program" --full $options || failed=1
  done
done
exit $failed
