// SPDX-License-Identifier: Apache-2.0
// The GPUs of this rank: how many it sees, which one it computes on, and the memory of that one. Kokkos has no portable
// name for a GPU's properties, and ends the process where there is no GPU; so each vendor's own calls are used, and
// this is the only file that names them.

#include <p3d/device/environment.hpp>

#include <p3d/device/compat.hpp>
#include <p3d/device/stream.hpp>

#include <cstdio>
#include <map>
#include <type_traits>
#include <utility>

#if defined(KOKKOS_ENABLE_CUDA)
#define P3D_GPU(name) cuda##name
#elif defined(KOKKOS_ENABLE_HIP)
#define P3D_GPU(name) hip##name
#endif

namespace p3d::device {

namespace {

/// Fills in name and bus address from the vendor's description of a GPU.
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

/// The vendor's stream behind an instance, or null.
template <class Exec>
void* stream_of([[maybe_unused]] Exec const& exec) {
  if constexpr (requires { exec.cuda_stream(); }) {
    return exec.cuda_stream();
  } else if constexpr (requires { exec.hip_stream(); }) {
    return exec.hip_stream();
  } else if constexpr (requires { exec.sycl_queue(); }) {
    return &exec.sycl_queue();
  } else {
    return nullptr;
  }
}

/// The execution instances on streams that are not Kokkos' own. The map is emptied before Kokkos ends.
std::map<void*, ExecSpace>& instances_of_streams() {
  static std::map<void*, ExecSpace> instances;
  static bool const cleared = [] {
    Kokkos::push_finalize_hook([] { instances.clear(); });
    return true;
  }();
  (void)cleared;
  return instances;
}

/// The instance on a stream. It is made at the first call and kept, since making it takes longer than a launch.
template <class Exec, class Stream>
Exec instance_by(void* stream) {
  auto& instances = instances_of_streams();
  auto const found = instances.find(stream);
  return found != instances.end() ? found->second
                                  : instances.emplace(stream, Exec(static_cast<Stream>(stream))).first->second;
}
/// instance_by() with the vendor's type of stream; the default instance where the backend has no streams.
template <class Exec>
Exec instance_of([[maybe_unused]] void* stream) {
  if constexpr (requires(Exec exec) { exec.cuda_stream(); }) {
    using Stream = std::remove_cvref_t<decltype(std::declval<Exec>().cuda_stream())>;
    return instance_by<Exec, Stream>(stream);
  } else if constexpr (requires(Exec exec) { exec.hip_stream(); }) {
    using Stream = std::remove_cvref_t<decltype(std::declval<Exec>().hip_stream())>;
    return instance_by<Exec, Stream>(stream);
  } else {
    return Exec();
  }
}

}  // namespace

VisibleGpus visible_gpus() {
  VisibleGpus gpus;
  if (on_host()) return gpus;
  gpus.needed = true;
#if defined(P3D_GPU)
  if (auto const code = P3D_GPU(GetDeviceCount)(&gpus.count); code != P3D_GPU(Success)) {
    gpus.count = 0;
    gpus.problem = P3D_GPU(GetErrorString)(code);
    static_cast<void>(P3D_GPU(GetLastError)());
  }
#elif KOKKOS_VERSION >= 40300
  gpus.count = Kokkos::num_devices();
#else
  gpus.count = 1;  // one is assumed; without one, Kokkos reports its own error
#endif
  return gpus;
}

GpuMemory gpu_memory() {
  GpuMemory memory;
#if defined(P3D_GPU)
  std::size_t free = 0, total = 0;
  if (P3D_GPU(MemGetInfo)(&free, &total) == P3D_GPU(Success))
    memory = {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
#endif
  return memory;
}

void* native_stream(ExecSpace const& exec) { return stream_of(exec); }

ExecSpace instance_on(void* stream) { return instance_of<ExecSpace>(stream); }

void release_instance(void* stream) {
  auto& instances = instances_of_streams();
  auto const found = instances.find(stream);
  if (found == instances.end()) return;
  detail::fence_now(found->second, "p3d::device::release_instance");  // the owner of the stream is about to end
  instances.erase(found);
}

Gpu gpu() {
  Gpu result;
  if (on_host()) return result;
  result.number = gpu_number();
  describe_gpu_of(Kokkos::DefaultExecutionSpace(), result);
  return result;
}

}  // namespace p3d::device
