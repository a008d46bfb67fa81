// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kokkos for the lifetime of a program, with a sensible number of threads and one GPU per rank.

#include <p3d/device/view.hpp>

#include <string>

namespace p3d::device {

/// The answer of the vendor's runtime about the GPUs that this process may use. It may be asked before Kokkos starts.
struct VisibleGpus {
  bool needed = false;  ///< this build computes on GPUs
  int count = 0;
  std::string problem;  ///< the runtime's message when it could not count the GPUs; else empty
};
/// Asks the vendor's runtime.
VisibleGpus visible_gpus();
/// Throws base::Error (bad_input) when this build needs a GPU and none is there. (Kokkos itself would end the process.)
void require_gpu(VisibleGpus const& gpus);

/// Kokkos from its initialization to its end. `threads` is used by host-parallel backends unless the user set a number
/// (OMP_NUM_THREADS or --kokkos-num-threads). On a GPU backend the rank takes GPU `local_rank` modulo the number of
/// GPUs that it sees, unless the user chose (--kokkos-device-id, --kokkos-map-device-id-by or their variables). Throws
/// base::Error (bad_input) where a GPU backend finds no GPU.
class Environment {
public:
  /// Starts Kokkos. Tests pass `gpus` of their own.
  Environment(int& argc, char** argv, int threads, int local_rank = 0, VisibleGpus const& gpus = visible_gpus());
  ~Environment();
  Environment(Environment const&) = delete;
  Environment& operator=(Environment const&) = delete;
};

/// The threads of the default host execution space (1 for Serial).
int host_threads();
/// The name of the default execution space: "Serial", "OpenMP", "Cuda", ...
char const* backend_name();
/// True when kernels run on the host, in memory that the host reaches.
bool on_host();

/// A GPU as this rank sees it. `bus` tells one GPU of a node from another also where each rank sees its own as number
/// 0.
struct Gpu {
  int number = -1;   ///< among those visible to this rank; -1: none
  std::string name;  ///< the vendor's name for it, "" when Kokkos does not say
  std::string bus;   ///< address on the PCI bus, "" when Kokkos does not say
};
/// The GPU of this rank. Kokkos must be running.
Gpu gpu();
/// Memory of a GPU in bytes, where memory that other processes use is not free; zeros on host backends, and where the
/// vendor's runtime does not say.
struct GpuMemory {
  std::int64_t free = 0, total = 0;
};
/// The memory of this rank's GPU. Kokkos must be running.
GpuMemory gpu_memory();
/// The vendor's own stream behind an execution instance, for libraries that take one: a stream of CUDA or HIP, or
/// the address of SYCL's queue; null on host backends.
void* native_stream(ExecSpace const& exec);

}  // namespace p3d::device
