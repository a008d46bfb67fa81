#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# failure_test.sh CASE[:ALGORITHM] PROGRAM MPIEXEC [FLAGS] -n : runs PROGRAM CASE on 4 ranks and checks the exit code,
# what is printed, that it ends soon, and that no rank is left behind.
argument=$1
case_name=${argument%%:*}
third=3  # the number of the third all-reduce; preparing an algorithm takes some
[ "$case_name" = "$argument" ] || third='[0-9]+'
program=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

start=$(date +%s)
timeout -k 5 90 "$@" 4 "$program" "$argument" > "$log" 2>&1 < /dev/null
code=$?
seconds=$(($(date +%s) - start))
cat "$log"
echo "case $case_name: exit code $code after $seconds s"

bad=0
fail() { echo "FAILED: $*"; bad=1; }
says() { grep -qE -- "$1" "$log" || fail "nothing printed like: $1"; }
# The budget is 2 s; a loaded machine may add to it, but never a minute. (A run that hangs is ended after 90 s, with
# code 124.)
[ "$seconds" -le 60 ] || fail "it took more than 60 s"
[ "$case_name" = unwound ] || [ "$(grep -c '^pid ' "$log")" -eq 4 ] || fail "not all 4 ranks started"
sleep 0.2
for pid in $(sed -n 's/^pid //p' "$log"); do
  if kill -0 "$pid" 2> /dev/null && ! grep -q '^State:.*Z' "/proc/$pid/status" 2> /dev/null; then
    fail "process $pid is still there"
    kill -9 "$pid"
  fi
done

one_table() { [ "$(grep -c 'All ranks:' "$log")" -eq 1 ] || fail "not exactly one table"; }
case $case_name in
  working)
    [ "$code" -eq 0 ] || fail "exit code $code, not 0"
    grep -q 'outlasted' "$log" && fail "a watchdog report" ;;
  killed)  # what the launcher makes of signal 9, not of a crash
    [ "$code" -eq 9 ] || [ "$code" -eq 137 ] || fail "exit code $code, not that of signal 9"
    says '[Ss]ignal 9' ;;
  thrown)
    [ "$code" -eq 1 ] || fail "exit code $code, not 1"
    says 'rank 3\] an error on the last rank' ;;
  unwound)
    [ "$code" -eq 1 ] || fail "exit code $code, not 1"
    grep -q unreachable "$log" && fail "the environment was left"
    says 'rank 3\] an exception ends this rank' ;;
  absent | yields | stopped)
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    says "step 12, 2F0: waited [0-9.]+ s for all_reduce #$third of .tp."
    says "not in all_reduce #$third of .tp.: rank 3 \(no answer\)\$"
    says 'rank 3: no answer: stopped, dead or computing'
    for rank in 0 1 2; do says "rank $rank: step 12, 2F0: waited [0-9.]+ s for all_reduce #$third of .tp."; done
    one_table ;;
  scatters | gathers)
    operation=reduce_scatter
    [ "$case_name" = scatters ] || operation=all_gather
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    says "not in $operation #$third of .tp.: rank 3 \(no answer\)\$"
    for rank in 0 1 2; do says "rank $rank: step 12, 2F0: waited [0-9.]+ s for $operation #$third of .tp."; done
    one_table ;;
  late)
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    says 'not in all_reduce #3 of .tp.: rank 3 \(not begun\)$'
    says 'rank 3: .* all_reduce #3 of .tp., which has not begun: its device is not done with what comes before'
    one_table ;;
  message)
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    says 'rank 0: step 12, 2F0: waited [0-9.]+ s for recv #1 of .tp. from its rank 3 \(rank 3 of world\)'
    says 'rank 3: step 12, 2F0: waited [0-9.]+ s for all_reduce #3 of .tp.'
    one_table ;;
  nccl | nccl_start)  # on the GPU a collective is lost, or the communicator never comes about
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    what='all_reduce #4 of .gpus.' place='step 12, 2F0'
    [ "$case_name" = nccl ] || what='ncclCommInitRank #0 of .gpus.' place='before the first step'
    for rank in 0 1 2 3; do says "rank $rank: $place: waited [0-9.]+ s for $what"; done
    says 'NCCL was aborted'
    one_table ;;
  both)
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    says 'rank 1: .* all_reduce #1 of .odd.'
    says 'rank 3: .* all_reduce #3 of .tp.'
    one_table ;;
  MPI_*)  # stopped inside a call that blocks
    [ "$code" -eq 3 ] || fail "exit code $code, not 3"
    says "rank [012] waited 2 s in [MA-z_]+ of .*longer than it may|rank [012]: .*waited [0-9.]+ s for"
    says 'rank 3: .*process [0-9]+ is stopped' ;;
  *) fail "no such case" ;;
esac
exit $bad
