#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does waiting dominate when ranks outnumber cores? Step time of 16 ranks (dp=2 tp=2 pp=4) against 4 ranks (dp=1 tp=2
# pp=2) with the same model and global batch, in turn, three times each; prints the median step of each run and the
# ratio of the medians.
#
#   benchmarks/oversubscription.sh [path of p3d]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${1:-build/release/p3d}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# median step_ms of a run, the first two steps left out
run() {
  local name=$1 ranks=$2
  shift 2
  mpiexec -n "$ranks" "$program" inputs/quickstart.toml run.steps=22 run.eval_batches=0 sample.tokens=0 \
    run.eval_every=0 checkpoint.every=0 optimizer.warmup_steps=2 batch.micro=2 batch.global=32 \
    "run.output_dir=$out/$name" "$@" \
    >"$out/$name.log" 2>&1 || { cat "$out/$name.log" >&2; exit 1; }
  tail -n +4 "$out/$name/metrics.csv" | cut -d, -f6 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'
}
many=() few=()
for turn in 1 2 3; do
  many+=("$(run many$turn 16 parallel.dp=2 parallel.tp=2 parallel.pp=4)")
  few+=("$(run few$turn 4 parallel.dp=1 parallel.tp=2 parallel.pp=2)")
  echo "turn $turn: 16 ranks ${many[-1]} ms, 4 ranks ${few[-1]} ms a step"
done
median() { printf '%s\n' "$@" | sort -g | sed -n 2p; }
awk -v a="$(median "${many[@]}")" -v b="$(median "${few[@]}")" -v cores="$(getconf _NPROCESSORS_ONLN)" \
  'BEGIN {printf "on %d cores: 16 ranks %.1f ms, 4 ranks %.1f ms, ratio %.2f (at most 2)\n", cores, a, b, a / b}'
