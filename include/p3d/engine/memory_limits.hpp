// SPDX-License-Identifier: Apache-2.0
#pragma once
// The limits of what may be allocated: of the process, of its job and of its node, known before anything is taken.

#include <p3d/comm/communicator.hpp>

#include <cstdint>
#include <string>

namespace p3d::engine {

/// The smallest limit on the memory of this process together with others.
struct MemoryLimit {
  std::int64_t bytes = 0;  ///< 0: none is known
  std::string what;        ///< "MemTotal", or the file of the control group
};
/// MemTotal and the limits of all control groups (v1 and v2) above this process. `root` stands for "/", for tests.
MemoryLimit memory_limit(std::string const& root = "/");

/// Throws base::Error (bad_input) when `ulimit -v` leaves no room for the buffers that a BLAS takes for each of its
/// threads: OpenBLAS retries such an allocation for ever. Local.
void require_address_space(int blas_threads);

/// Throws base::Error (bad_input) when the `bytes` of the ranks that share a limit exceed it together, or when this
/// rank's exceed its own `ulimit -v`. The error is on every rank that shares the limit. Collective.
void require_memory(std::int64_t bytes, comm::Communicator& world);

/// The GPU that a rank computes on.
struct GpuRoom {
  std::string gpu;  ///< tells it from others of the node
  std::int64_t free = 0, total = 0;
};
/// The memory of this rank's GPU; free and total are 0 where they are not known. Kokkos must run.
GpuRoom gpu_room();
/// Throws base::Error (bad_input) when the `bytes` of the ranks that compute on one GPU exceed what is free on it. The
/// error is on every rank of that GPU. Collective.
void require_gpu_memory(std::int64_t bytes, GpuRoom const& here, comm::Communicator& world);

/// Throws base::Error (bad_input) when what a rank takes, `bytes` of plan::MemoryPrediction::total, is not there: on
/// the host or, but for the context, which is taken when Kokkos runs, on its GPU. Collective.
void require_room(std::int64_t bytes, comm::Communicator& world);

}  // namespace p3d::engine
