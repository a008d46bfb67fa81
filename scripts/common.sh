# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts here: where things are, how they speak, how much of the machine they take.
# shellcheck shell=bash

P3D_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$P3D_ROOT"

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
fail() { printf '\np3d: error: %s\n' "$*" >&2; exit 1; }

# quietly <log> <command...>: the output goes to a log, and its end to the screen when the command fails.
quietly() {
  local log=$1
  shift
  "$@" > "$log" 2>&1 || { tail -n 60 "$log" >&2; fail "failed: $* (all of it in $log)"; }
}

# timed <what> <command...>: runs it and puts its time into the array `summary`.
summary=()
timed() {
  local what=$1 begin=$SECONDS
  shift
  "$@"
  summary+=("$(printf '%-26s %4d s' "$what" $((SECONDS - begin)))")
}

# Processors we may use. (nproc alone would obey OMP_NUM_THREADS, which is meant for the programs.)
processors() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Compile jobs: one for each processor we may use, but no more than memory allows (a file that includes Kokkos takes up
# to 1.2 GB to compile). P3D_JOBS overrides.
jobs_for_this_machine() {
  local cores memory_mb limit by_memory
  cores=$(processors)
  memory_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo 2>/dev/null || true)
  memory_mb=${memory_mb:-4096}
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)  # of a container
  if [[ $limit =~ ^[0-9]+$ ]] && (( limit / 1048576 < memory_mb )); then memory_mb=$(( limit / 1048576 )); fi
  by_memory=$(( memory_mb / 1200 ))
  (( by_memory < 1 )) && by_memory=1
  echo $(( cores < by_memory ? cores : by_memory ))
}
JOBS=${P3D_JOBS:-$(jobs_for_this_machine)}

# What a leg does not compile in its own way (rooms without Kokkos) it finds in the cache from the leg before: the
# compiler's paths are taken relative to this folder.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
# It may keep what was compiled with precompiled headers, whose own dates and macros it would else have to know.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

# configure_and_build <preset> [target] : configures when needed (cmake itself looks) and builds all or the target; both
# do nothing when nothing changed.
configure_and_build() {
  local preset=$1 target=${2:-all}
  say "Configure and build preset $preset into build/$preset ($JOBS jobs)"
  # Several sources at a time: half the compiling, where all of it is to be done anyhow. tests/lint/alone.py looks
  # whether each source includes what it needs, for those who call cmake themselves.
  local options=(-DCMAKE_UNITY_BUILD=ON)
  # One leg compiles the benchmarks, so that they keep up with p3d.
  [[ $preset != release ]] || options+=(-DP3D_BUILD_BENCHMARKS=ON)
  if [[ -f build/$preset/build.ninja ]] &&
      { [[ $preset != release ]] || grep -q '^P3D_BUILD_BENCHMARKS:BOOL=ON' "build/$preset/CMakeCache.txt"; }; then
    note "build/$preset is configured already; cmake looks at it again by itself if a CMake file changed"
  else
    cmake --preset "$preset" "${options[@]}"
  fi
  cmake --build --preset "$preset" -j "$JOBS" --target "$target"
}
