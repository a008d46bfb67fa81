// SPDX-License-Identifier: Apache-2.0
#pragma once
// comm.gpu_aware: whether MPI is given the addresses of GPU memory.

#include <p3d/config/config.hpp>

#include <string>

namespace p3d::run {

/// Decides (auto: asks MPI) and sets it for all messages of this process. Returns a line for the log; "" on host
/// backends, where the question does not arise. Warns where MPI contradicts "on". An all-reduce of p3d's own needs
/// memory that the host reads: auto then chooses host memory, and "on" is refused (base::Error).
std::string choose_message_path(config::Comm const& choice);

}  // namespace p3d::run
