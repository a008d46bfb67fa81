#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The calls of NCCL and RCCL, which need neither Kokkos nor a GPU to be compiled.
#
# usage: nccl.sh nccl|rccl <c++> [compiler options]
# The object must want the libraries' functions. With the headers if the compiler finds them, else with a likeness of
# what the file uses of them. (Python's package nvidia-nccl-cu13 has NCCL's header and library:
# -I.../nvidia/nccl/include -I.../cuda/include; with LIBRARIES="..." in the environment a program is linked too.)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kind=$1 compiler=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(-std=c++20 -fPIC -I"$root/include" -I"$root/src")
case $kind in
  nccl) gpu=cuda headers='#include <cuda_runtime_api.h>
#include <nccl.h>' ;;
  rccl) gpu=hip headers='#include <hip/hip_runtime_api.h>
#include <rccl/rccl.h>'
    options+=(-D__HIP_PLATFORM_AMD__ -DP3D_RCCL) ;;
  *) echo "unknown library: $kind" >&2; exit 2 ;;
esac
if ! echo "$headers" | "$compiler" -x c++ "${options[@]}" "$@" -fsyntax-only - 2> /dev/null; then
  echo "no $kind here: a likeness of its header"
  mkdir "$work/hip" "$work/rccl"
  likeness=$root/tests/support/nccl_likeness
  for header in cuda_runtime_api.h nccl.h; do sed "s/cuda/$gpu/g" "$likeness/$header" > "$work/$header"; done
  cp "$work/cuda_runtime_api.h" "$work/hip/hip_runtime_api.h"
  sed 's|<hip_runtime_api.h>|<hip/hip_runtime_api.h>|' "$work/nccl.h" > "$work/rccl/rccl.h"
  options+=(-I"$work")
fi
"$compiler" -Wall -Wextra -Werror "${options[@]}" "$@" -c "$root/src/comm/nccl_library.cpp" -o "$work/nccl.o"
for name in ncclCommInitRankConfig ncclCommGetAsyncError ncclCommAbort ncclAllReduce ncclReduceScatter ncclAllGather \
  ncclBroadcast ncclReduce ncclSend ncclRecv "${gpu}EventRecord" "${gpu}StreamWaitEvent" "${gpu}EventQuery"; do
  nm -u "$work/nccl.o" | grep -qE " ${name}\$" || { echo "the object does not want $name" >&2; exit 1; }
done
[ -n "${LIBRARIES:-}" ] || exit 0
cat > "$work/program.cpp" <<'PROGRAM'
#include <comm/nccl_api.hpp>
#include <cstdio>
namespace p3d::comm::detail { NcclApi::~NcclApi() = default; }
int main() { std::puts(p3d::comm::detail::nccl_library()->version().c_str()); }
PROGRAM
# shellcheck disable=SC2086
"$compiler" "${options[@]}" "$@" "$work/program.cpp" "$work/nccl.o" -o "$work/program" $LIBRARIES -lfmt
"$work/program"
