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
  sed "s/GPU/$gpu/g" > "$work/cuda_runtime_api.h" <<'HEADER'
#pragma once
typedef struct GPUStream* GPUStream_t;
typedef struct GPUEvent* GPUEvent_t;
typedef enum { GPUSuccess = 0, GPUErrorNotReady = 600 } GPUError_t;
enum { GPUStreamNonBlocking = 1, GPUEventDisableTiming = 2 };
extern "C" {
char const* GPUGetErrorString(GPUError_t);
GPUError_t GPUGetDevice(int*);
GPUError_t GPUDeviceGetPCIBusId(char*, int, int);
GPUError_t GPUDeviceGetStreamPriorityRange(int*, int*);
GPUError_t GPUStreamCreateWithPriority(GPUStream_t*, unsigned, int);
GPUError_t GPUStreamDestroy(GPUStream_t);
GPUError_t GPUStreamWaitEvent(GPUStream_t, GPUEvent_t, unsigned);
GPUError_t GPUEventCreateWithFlags(GPUEvent_t*, unsigned);
GPUError_t GPUEventDestroy(GPUEvent_t);
GPUError_t GPUEventRecord(GPUEvent_t, GPUStream_t);
GPUError_t GPUEventQuery(GPUEvent_t);
}
HEADER
  sed "s/GPU/$gpu/g" > "$work/nccl.h" <<'HEADER'
#pragma once
#include <cstddef>
#define NCCL_VERSION_CODE 21400
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
typedef struct ncclComm* ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin } ncclRedOp_t;
typedef enum {
  ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16
} ncclDataType_t;
typedef struct { int blocking; } ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER {0}
extern "C" {
ncclResult_t ncclGetVersion(int*);
ncclResult_t ncclGetUniqueId(ncclUniqueId*);
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*);
char const* ncclGetErrorString(ncclResult_t);
char const* ncclGetLastError(ncclComm_t);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllReduce(void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, GPUStream_t);
ncclResult_t ncclReduce(void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, GPUStream_t);
ncclResult_t ncclReduceScatter(void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, GPUStream_t);
ncclResult_t ncclAllGather(void const*, void*, std::size_t, ncclDataType_t, ncclComm_t, GPUStream_t);
ncclResult_t ncclBroadcast(void const*, void*, std::size_t, ncclDataType_t, int, ncclComm_t, GPUStream_t);
ncclResult_t ncclSend(void const*, std::size_t, ncclDataType_t, int, ncclComm_t, GPUStream_t);
ncclResult_t ncclRecv(void*, std::size_t, ncclDataType_t, int, ncclComm_t, GPUStream_t);
}
HEADER
  cp "$work/cuda_runtime_api.h" "$work/hip/hip_runtime_api.h"
  cp "$work/nccl.h" "$work/rccl/rccl.h"
  runtime=cuda_runtime_api.h
  [ "$gpu" = cuda ] || runtime=hip/hip_runtime_api.h
  sed -i "1a #include <$runtime>" "$work/nccl.h" "$work/rccl/rccl.h"
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
