// SPDX-License-Identifier: Apache-2.0
#pragma once
// What MPI knows of GPUs. The only part of room comm that names vendors is its source file.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace p3d::comm {

/// Can MPI read and write memory of this Kokkos backend ("Cuda", "HIP", "SYCL")? Host backends: yes. Nothing where MPI
/// does not say: then copies through host memory are the safe way. With MPI running.
std::optional<bool> reaches_memory_of(std::string_view backend);

/// How a trial of GPU memory in MPI ended; the worst last.
enum class GpuTrial { works, wrong_data, host_access, error, hangs };
/// "tried at the start", or what went wrong.
std::string_view describe(GpuTrial result);

/// Bytes of memory that a trial takes.
inline constexpr std::int64_t trial_bytes = std::int64_t{1} << 20;
/// GPU memory whose address MPI is given. After a trial that did not work it must never be used or freed: pages of the
/// host may lie in its place, and MPI may still write to it.
struct TrialMemory {
  std::byte* data;
  std::function<void(void const* host, std::int64_t bytes)> write;
  std::function<void(void* host, std::int64_t bytes)> read;
};
/// Messages of GPU memory round all ranks, of 1 KiB, 64 KiB and 1 MiB, beginning with the short ones: the worst that
/// any rank met. An MPI library that copies them as memory of the host (SIGSEGV) does not end the process. Collective;
/// each length takes at most `seconds`.
GpuTrial try_messages(Communicator& comm, TrialMemory const& in, TrialMemory const& out, double seconds = 20.0);
/// The same for MPI_Iallreduce.
GpuTrial try_sums(Communicator& comm, TrialMemory const& inout, double seconds = 20.0);

/// Whether the MPI library is Open MPI, or made of it, by what library_version() says. It has no non-blocking
/// reductions of GPU memory: they end in SIGSEGV.
bool is_open_mpi(std::string_view library);

/// Name and version of the MPI library that is loaded, on one line. May be called before MPI starts.
std::string library_version();

}  // namespace p3d::comm
