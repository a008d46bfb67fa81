// SPDX-License-Identifier: Apache-2.0
#pragma once
// comm.gpu_aware: whether MPI is given the addresses of GPU memory.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

#include <string>

namespace p3d::run {

/// Decides, by a trial where MPI says that it can or "on" says so, and sets it for all messages of this process. What
/// is not tried is not used. Returns a line for the log; "" on host backends, where the question does not arise.
///
/// Sums and other collectives go through the host unless comm.allreduce = "mpi" asks for MPI's, and never by Open MPI,
/// whose reductions of GPU memory crash. Beside NCCL, "auto" gives MPI no GPU memory at all: the two may wait for each
/// other for ever. Throws base::Error where "on" does not work, on all ranks alike. Collective.
std::string choose_message_path(config::Config const& config, comm::Communicator& world);

}  // namespace p3d::run
