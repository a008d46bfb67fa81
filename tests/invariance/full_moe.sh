#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every division of experts over ep and etp, with every router, in every layout of up to 8 ranks: fp64 and fp32
# (some 20 minutes on 2 cores). usage: tests/invariance/full_moe.sh [build/release/tests/bin]
set -euo pipefail
bin=${1:-$(dirname "${BASH_SOURCE[0]}")/../../build/release/tests/bin}
export OMP_NUM_THREADS=1
for ranks in 2 3 4 6 8; do
  for words in "" "--precision fp32"; do
    # shellcheck disable=SC2086
    mpiexec -n "$ranks" "$bin/invariance_moe" --full $words < /dev/null | tail -n 1
  done
done
