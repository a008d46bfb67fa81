#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# launch_order_test.sh CASE PROGRAM MPIEXEC [FLAGS] -n : collectives in one order on all ranks pass; in another one the
# fake NCCL ends the program with its text.
case_name=$1
program=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
fail() { cat "$log"; echo "FAILED: $*"; exit 1; }

if [ "$case_name" = training ]; then  # the right order has a test of its own
  wrong='--gtest_also_run_disabled_tests --gtest_filter=*Hasty*'
else
  wrong="$case_name wrong"
  timeout -k 5 60 "$@" 4 "$program" "$case_name" right > "$log" 2>&1 < /dev/null || fail "the right order: exit code $?"
  if grep -q 'fake NCCL' "$log"; then fail "the right order: something was found"; fi
fi
# shellcheck disable=SC2086
timeout -k 5 60 "$@" 4 "$program" $wrong > "$log" 2>&1 < /dev/null
code=$?
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "the wrong order: exit code $code"
case $case_name in
  buckets) grep -q 'fake NCCL: wrong order: rank [0-9] is at all-reduce of [23]000 elements' "$log" ;;
  *) grep -q 'fake NCCL: deadlock: launches in different orders' "$log" &&
    grep -q 'rank [0-9] is at .* waits for rank' "$log" ;;
esac || fail "the wrong order: not found"
cat "$log"
