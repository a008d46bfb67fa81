#pragma once
// comm.gpu_aware: whether MPI is given the addresses of GPU memory.

#include <p3d/config/config.hpp>

#include <string>

namespace p3d::runtime {

/// Decides (auto: asks MPI) and sets it for all messages of this process. Returns a line for the log; "" on host backends,
/// where the question does not arise. Warns where MPI contradicts "on".
std::string choose_message_path(config::GpuAware choice);

}  // namespace p3d::runtime
