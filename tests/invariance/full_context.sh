#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every order and exchange of context parallelism in every layout of up to 8 ranks: fp64 and fp32, with dropout and
# without (some 20 minutes on 2 cores). usage: tests/invariance/full_context.sh [build/release/tests/bin]
set -euo pipefail
bin=${1:-$(dirname "${BASH_SOURCE[0]}")/../../build/release/tests/bin}
export OMP_NUM_THREADS=1
for ranks in 2 3 4 6 8; do
  for words in "" "--dropout 0.1" "--precision fp32" "--precision fp32 --dropout 0.1"; do
    # shellcheck disable=SC2086
    mpiexec -n "$ranks" "$bin/invariance_context" --full $words < /dev/null | tail -n 1
  done
done
