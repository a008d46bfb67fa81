// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver that Kokkos calls by name. Each looks up the driver's own function when it is first
// called. Linked in front of the driver's library, they leave nothing for it to define, so that p3d does not need
// libcuda.so.1 to start: --version, --check, mesh and schedule run where no driver is (login nodes, containers). The
// CUDA runtime, cuBLAS and NCCL open the driver themselves. With a Kokkos that calls another function of the driver, or
// is a shared library, p3d needs libcuda.so.1 after all: tests/app/driver_test.py names the function or library that
// needs it.

#include <cuda.h>

#include <dlfcn.h>

namespace {

/// The driver's own function of a name; null where there is no driver.
template <class F>
F in_driver(char const* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<F>(dlsym(driver, name));
}

}  // namespace

// cuda.h renames functions to their versions by macros: both the definition and the text have the name that results.
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
