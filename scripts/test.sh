#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds p3d and runs its tests, in legs:
#   release   Kokkos of the distribution's packages (Serial)
#   openmp    Kokkos with OpenMP, built from the distribution's source package: kernels, layers and whole trainings on
#             few ranks, some with several threads each; without what a backend cannot change
#   debug     address and undefined-behaviour sanitizers (not run unless asked for)
#   tsan      thread sanitizer: Clang and its OpenMP; messages, checkpoints, and kernels with several threads (likewise)
#
# usage: scripts/test.sh [--only release|openmp|debug|tsan]... [--more] [-j jobs]
# --more: the release leg with all numbers of ranks, up to 8, for every test.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '3,11s/^# \{0,1\}//p' "$0"; }
legs=()
more=
while (( $# > 0 )); do
  case $1 in
    --only) legs+=("${2:-}"); shift 2 || { usage >&2; exit 2; } ;;
    -j) JOBS=${2:-}; shift 2 || { usage >&2; exit 2; } ;;
    -j*) JOBS=${1#-j}; shift ;;
    --more) more=-more; shift ;;
    -h|--help) usage; exit 0 ;;
    *) echo "unknown argument: $1" >&2; usage >&2; exit 2 ;;
  esac
done
(( ${#legs[@]} > 0 )) || legs=(release openmp)
for leg in "${legs[@]}"; do
  [[ $leg =~ ^(release|openmp|debug|tsan)$ ]] || { echo "unknown leg: '$leg'" >&2; usage >&2; exit 2; }
done
[[ $JOBS =~ ^[1-9][0-9]*$ ]] || { echo "not a number of jobs: '$JOBS'" >&2; exit 2; }
export P3D_JOBS=$JOBS

failed=()
done_legs=()

run_tests() {
  local leg=$1 log=build/$1/ctest.log begin=$SECONDS status=0
  # One more than there are processors: some tests wait most of their time, for a disk, a limit or a daemon.
  local together=$(( $(processors) + 1 ))
  say "Test preset $leg (ctest, $together at a time)"
  local preset=$leg
  [[ $leg != release ]] || preset+=$more
  ctest --preset "$preset" -j "$together" 2>&1 | tee "$log" || status=$?
  (( status == 0 )) || failed+=("$leg")
  summary+=("$(printf '%-26s %4d s   %s' "$leg: test" $((SECONDS - begin)) \
    "$(grep -E 'tests? passed' "$log" || echo 'no result')")")
}

show_summary() {
  say "Summary (in all $SECONDS s)"
  local line
  for line in "${summary[@]}"; do note "$line"; done
  if (( ${#failed[@]} > 0 )); then
    note "FAILED tests in: ${failed[*]}"
  elif (( ${#done_legs[@]} < ${#legs[@]} )); then
    note "STOPPED before the end: see the lines above"
  else
    note "all tests passed in: ${legs[*]}"
  fi
}
trap show_summary EXIT

say "Legs: ${legs[*]}"
for leg in "${legs[@]}"; do rm -f "build/$leg/ctest.log"; done
timed "packages" scripts/install-deps.sh --tests
for leg in "${legs[@]}"; do
  case $leg in
    openmp) timed "openmp: Kokkos" scripts/kokkos-openmp.sh ;;
    tsan)
      timed "tsan: packages" scripts/install-deps.sh --tsan
      timed "tsan: Kokkos" scripts/kokkos-openmp.sh --tsan ;;
  esac
  timed "$leg: build" configure_and_build "$leg"
  run_tests "$leg"  # tests that fail do not keep the next leg from running
  done_legs+=("$leg")
done
(( ${#failed[@]} == 0 ))
