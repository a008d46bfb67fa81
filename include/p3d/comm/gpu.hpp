// SPDX-License-Identifier: Apache-2.0
#pragma once
// Questions to the MPI library about GPU memory. Only the source file of this header names GPU vendors.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace p3d::comm {

/// Tells whether MPI can read and write memory of this Kokkos backend ("Cuda", "HIP", "SYCL"). It is true for host
/// backends. It is empty where MPI does not say; then copies through host memory are the safe way. Needs MPI to run.
std::optional<bool> reaches_memory_of(std::string_view backend);

/// Result of a trial of GPU memory in MPI; a later value is worse.
enum class GpuTrial { works, wrong_data, host_access, error, hangs };
/// The result in words: "tried at the start", or what went wrong.
std::string_view describe(GpuTrial result);

/// Bytes of memory that a trial needs.
inline constexpr std::int64_t trial_bytes = std::int64_t{1} << 20;
/// GPU memory whose address MPI is given in a trial. After a trial that did not work it must never be used or freed:
/// pages of the host may lie in its place, and MPI may still write to it.
struct TrialMemory {
  std::byte* data;                                                  ///< address in GPU memory, trial_bytes long
  std::function<void(void const* host, std::int64_t bytes)> write;  ///< copies from the host to `data`
  std::function<void(void* host, std::int64_t bytes)> read;         ///< copies from `data` to the host
};
/// Sends messages of GPU memory round all ranks, of 1 KiB, 64 KiB and 1 MiB, beginning with the short ones, and returns
/// the worst result that any rank met. An MPI library that copies them as host memory (SIGSEGV) does not end the
/// process. Collective; each length takes at most `seconds`.
GpuTrial try_messages(Communicator& comm, TrialMemory const& in, TrialMemory const& out, double seconds = 20.0);
/// Tries MPI_Iallreduce of GPU memory, as try_messages() tries messages. Collective.
GpuTrial try_sums(Communicator& comm, TrialMemory const& inout, double seconds = 20.0);

/// True when the MPI library is Open MPI, or derived from it. `library` is what library_version() returns. Open MPI has
/// no non-blocking reductions of GPU memory: they end in SIGSEGV.
bool is_open_mpi(std::string_view library);

/// Name and version of the MPI library that is loaded, on one line. May be called before MPI starts.
std::string library_version();

}  // namespace p3d::comm
