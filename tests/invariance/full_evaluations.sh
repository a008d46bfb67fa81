#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Evaluation under every schedule with every number of microbatches up to 3 pp, for pp = 2 to 8, with messages of 2, 15
# and 48 KiB (below and above what MPI sends eagerly), against one rank.
#
#   tests/invariance/full_evaluations.sh [path of the program] [ranks...]
set -euo pipefail
program=${1:-build/release/tests/bin/engine_evaluation}
shift || true
failed=0
for n in ${*:-2 3 4 5 6 7 8}; do
  OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 P3D_EVERY_PROGRAM=1 mpiexec -n "$n" "$program" --gtest_brief=1 || failed=1
done
exit $failed
