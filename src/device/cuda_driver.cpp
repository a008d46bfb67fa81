// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver that Kokkos calls by name, each of which looks the driver's own up when it is first
// called. Linked in front of the driver's library, they leave nothing for it to define, so that p3d does not need
// libcuda.so.1 to start: --version, --check, mesh and schedule run where no driver is (login nodes, containers). The
// CUDA runtime, cuBLAS and NCCL open the driver themselves. A Kokkos that calls another function of the driver, or is a
// shared library, needs libcuda.so.1 as ever: tests/app/driver_test.py names what it is that needs it.

#include <cuda.h>

#include <dlfcn.h>

namespace {

/// The driver's own function of that name; null where there is no driver.
template <class F>
F in_driver(char const* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<F>(dlsym(driver, name));
}

}  // namespace

// cuda.h renames functions to their versions by macros: both the definition and the text have the name after that.
#define P3D_TEXT(name) #name
#define P3D_LATE(name, parameters, arguments)                                         \
  extern "C" __attribute__((visibility("hidden"))) CUresult CUDAAPI name parameters { \
    static auto const real = in_driver<decltype(&name)>(P3D_TEXT(name));              \
    return real == nullptr ? CUDA_ERROR_NOT_INITIALIZED : real arguments;             \
  }

P3D_LATE(cuStreamGetCtx, (CUstream stream, CUcontext* context), (stream, context))
P3D_LATE(cuCtxPushCurrent, (CUcontext context), (context))
P3D_LATE(cuCtxPopCurrent, (CUcontext * context), (context))
P3D_LATE(cuCtxGetCurrent, (CUcontext * context), (context))
P3D_LATE(cuCtxSetCurrent, (CUcontext context), (context))
P3D_LATE(cuCtxGetDevice, (CUdevice * device), (device))
