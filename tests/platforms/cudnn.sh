#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# p3d's attention by cuDNN on a machine without a GPU: compiles src/kernels/attention_cudnn.cpp and has cuDNN itself
# make its plans for the GPUs that are described in gpus/. What a plan asks of the driver (to load its code) is answered
# by a stand-in; nothing runs. Ends with an error where a plan is refused.
#
# usage: cudnn.sh [gpus/h100.json ...]
# cuDNN, its frontend and the CUDA toolkit: below CUDA_HOME, CUDNN_ROOT and CUDNN_FRONTEND_ROOT where these are set,
# else of the machine, else from PyPI's nvidia packages.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(( $# > 0 )) || set -- "$here"/gpus/*.json

cuda=${CUDA_HOME:-/usr/local/cuda}
cudnn=${CUDNN_ROOT:-$cuda}
frontend=${CUDNN_FRONTEND_ROOT:-$cudnn}
packages=()
[[ -f $cuda/include/cuda_runtime_api.h ]] || packages+=(nvidia-cuda-runtime nvidia-cuda-nvrtc nvidia-cuda-crt)
[[ -f $cudnn/include/cudnn.h ]] || packages+=(nvidia-cudnn-cu13)
[[ -f $frontend/include/cudnn_frontend.h ]] || packages+=(nvidia-cudnn-frontend)
if (( ${#packages[@]} > 0 )); then
  echo "from PyPI: ${packages[*]}"
  python3 -m pip install --quiet --no-deps --target "$work/pypi" "${packages[@]}"
fi
options=()
for folder in "$frontend/include" "$cudnn/include" "$cuda/include" "$work"/pypi/include \
  "$work"/pypi/nvidia/*/include; do
  [[ -d $folder ]] && options+=(-isystem "$folder")
done
libraries=()
for name in cudnn cudnn_graph cudart nvrtc; do
  found=$(ls "$cudnn"/lib*/lib$name.so* "$cuda"/lib*/lib$name.so* "$work"/pypi/nvidia/*/lib/lib$name.so* 2> /dev/null |
    head -n 1 || true)
  [[ -n $found ]] || { echo "no lib$name below $cudnn, $cuda or in PyPI's packages" >&2; exit 1; }
  libraries+=("$found")
  path=$(dirname "$found")${path:+:$path}
done

# A driver that knows no device, and says yes where code is to be loaded.
cat > "$work/driver.c" <<'DRIVER'
#define _GNU_SOURCE
#include <dlfcn.h>
static int hand_out(void** p) { if (p) *p = (void*)64; return 0; }
#define HANDS_OUT(name) int name(void** p) { return hand_out(p); }
HANDS_OUT(cuLibraryLoadData) HANDS_OUT(cuLibraryGetKernel) HANDS_OUT(cuKernelGetFunction) HANDS_OUT(cuModuleLoadData)
HANDS_OUT(cuModuleLoadDataEx) HANDS_OUT(cuModuleGetFunction)
int cuLibraryUnload(void* p) { (void)p; return 0; }
int cuKernelSetAttribute(int a, int v, void* k, int d) { (void)a, (void)v, (void)k, (void)d; return 0; }
int cuFuncSetAttribute(void* f, int a, int v) { (void)f, (void)a, (void)v; return 0; }
int cuGetErrorString(int e, char const** s) { (void)e; *s = "no driver"; return 0; }
int cuGetErrorName(int e, char const** s) { (void)e; *s = "no driver"; return 0; }
static int nothing(void) { return 100; /* no device */ }
int cuInit(unsigned f) { (void)f; return nothing(); }
#define HAS(name) int name(void) { return nothing(); }
HAS(cuLaunchKernel) HAS(cuLaunchCooperativeKernel) HAS(cuLaunchKernelEx) HAS(cuCtxGetCurrent) HAS(cuCtxSetCurrent)
HAS(cuCtxGetLimit) HAS(cuCtxPopCurrent) HAS(cuCtxPushCurrent) HAS(cuStreamGetCtx) HAS(cuLinkCreate) HAS(cuLinkAddData)
HAS(cuLinkComplete) HAS(cuLinkDestroy) HAS(cuDeviceGetCount) HAS(cuDeviceGet) HAS(cuLibraryLoadFromFile)
HAS(cuKernelGetAttribute) HAS(cuOccupancyMaxPotentialClusterSize) HAS(cuModuleUnload) HAS(cuFuncGetAttribute)
HAS(cuTensorMapEncodeTiled) HAS(cuTensorMapEncodeIm2col) HAS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
HAS(cuDeviceGetAttribute) HAS(cuCtxGetDevice)
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuGetProcAddress_v2(char const* s, void** p, int v, unsigned long f, int* found) {
  (void)v, (void)f;
  *p = dlsym(RTLD_DEFAULT, s);
  if (!*p) *p = (void*)nothing;
  if (found) *found = 0;
  return 0;
}
int cuGetProcAddress(char const* s, void** p, int v, unsigned long f) { return cuGetProcAddress_v2(s, p, v, f, 0); }
DRIVER
${CC:-cc} -shared -fPIC -O1 -o "$work/libcuda.so.1" "$work/driver.c" -ldl

begin=$SECONDS
base=("$root"/src/base/error.cpp "$root"/src/base/printable.cpp "$root"/src/base/text.cpp)
${CXX:-c++} -std=c++20 -O1 -Wall -Wextra -I"$root/include" -I"$root/src" "${options[@]}" "$here/cudnn_plans.cpp" \
  "$root/src/kernels/attention_cudnn.cpp" "$root/src/kernels/attention_fused.cpp" "${base[@]}" "${libraries[@]}" \
  -Wl,-rpath,"$path" -Wl,--allow-shlib-undefined -lfmt -ldl -o "$work/plans"
echo "compiled in $((SECONDS - begin)) s"
status=0
for gpu in "$@"; do
  echo
  echo "$(basename "$gpu" .json):"
  LD_LIBRARY_PATH=$work:$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/plans" "$gpu" || status=1
done
exit $status
