// SPDX-License-Identifier: Apache-2.0
#pragma once
// comm.gpu_aware: whether MPI is given the addresses of GPU memory, or messages go through pinned memory of the host.

#include <p3d/comm/communicator.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/config/config.hpp>

#include <functional>
#include <optional>
#include <string>

namespace p3d::run {

/// The facts that decide how messages between GPUs go. A trial runs only when the answer needs it.
struct PathQuestion {
  config::GpuAware choice;      ///< comm.gpu_aware
  bool nccl;                    ///< NCCL is in use in this run
  std::optional<bool> reaches;  ///< comm::reaches_memory_of
  std::string library;          ///< comm::library_version
  bool mpi_sums;                ///< comm.allreduce = "mpi"
  std::function<comm::GpuTrial()> try_messages, try_sums;
};
/// The choice: whether MPI is given addresses of GPU memory, for messages and for sums, and the reason for the log.
struct MessagePath {
  bool messages, sums;
  std::string reason;
};
/// The rule of choose_message_path, apart from the machine. Throws base::Error where "on" was tried and does not work.
MessagePath message_path(PathQuestion const& question);

/// Decides how messages go and sets it for all messages of this process. A path through GPU memory is tried first,
/// where MPI says that it can or "on" says so; a path that was not tried is not used. Returns a line for the log; "" on
/// host backends and on one rank, where the question does not arise.
///
/// Sums and other collectives go through the host unless comm.allreduce = "mpi" asks for MPI's, and never by Open MPI,
/// whose reductions of GPU memory crash. Beside NCCL, "auto" gives MPI no GPU memory at all: the two may wait for each
/// other for ever. Throws base::Error where "on" does not work, on all ranks alike. Collective.
std::string choose_message_path(config::Config const& config, comm::Communicator& world);

}  // namespace p3d::run
