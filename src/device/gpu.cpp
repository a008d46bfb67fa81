// SPDX-License-Identifier: Apache-2.0
// Which GPU this rank computes on. Kokkos has no portable name for a GPU's properties: each backend's own is tried, and
// this is the only file that names them.

#include <p3d/device/environment.hpp>

#include <p3d/device/compat.hpp>

#include <cstdio>

namespace p3d::device {

namespace {

template <class Properties>
void describe(Properties const& p, Gpu& gpu) {
  gpu.name = p.name;
  char bus[32];
  std::snprintf(bus, sizeof(bus), "%04x:%02x:%02x", static_cast<unsigned>(p.pciDomainID),
                static_cast<unsigned>(p.pciBusID), static_cast<unsigned>(p.pciDeviceID));
  gpu.bus = bus;
}

template <class Exec>
void describe_gpu_of(Exec const& exec, Gpu& gpu) {
  if constexpr (requires { exec.cuda_device_prop(); }) {
    describe(exec.cuda_device_prop(), gpu);
  } else if constexpr (requires { exec.hip_device_prop(); }) {
    describe(exec.hip_device_prop(), gpu);
  }
}

template <class Exec>
void* stream_of([[maybe_unused]] Exec const& exec) {
  if constexpr (requires { exec.cuda_stream(); }) {
    return exec.cuda_stream();
  } else if constexpr (requires { exec.hip_stream(); }) {
    return exec.hip_stream();
  } else {
    return nullptr;
  }
}

}  // namespace

void* native_stream(ExecSpace const& exec) { return stream_of(exec); }

Gpu gpu() {
  Gpu result;
  if (on_host()) return result;
  result.number = gpu_number();
  describe_gpu_of(Kokkos::DefaultExecutionSpace(), result);
  return result;
}

}  // namespace p3d::device
