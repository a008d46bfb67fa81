#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every schedule with every number of microbatches from pp - 1 to 4 pp, for pp = 2, 3, 4 alone and beside dp and tp,
# against one rank in fp64. Prints one line for each run, and a summary line for each number of ranks.
#
#   tests/invariance/full_schedules.sh [path of the program] [ranks...]
set -euo pipefail
program=${1:-build/release/tests/bin/invariance_schedules}
shift || true
failed=0
for n in ${*:-2 3 4 6 8}; do
  OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 mpiexec -n "$n" "$program" --full || failed=1
done
exit $failed
