// SPDX-License-Identifier: Apache-2.0
#include "gpu_aware.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/device/environment.hpp>

#include <fmt/format.h>

namespace p3d::run {

std::string choose_message_path(config::Comm const& comm_choice) {
  if (device::on_host()) return "";
  auto const choice = comm_choice.gpu_aware;
  auto const by = comm_choice.allreduce;
  bool const on_host = by != config::AllReduce::automatic && by != config::AllReduce::mpi;
  if (on_host && choice == config::GpuAware::on) {
    throw base::Error({.expected = fmt::format("host memory for comm.allreduce = \"{}\"", config::to_string(by)),
                       .found = "comm.gpu_aware = \"on\": messages of GPU memory",
                       .where = "comm.allreduce, comm.gpu_aware",
                       .fix = "set comm.allreduce to \"auto\" (MPI sums GPU memory), or comm.gpu_aware to \"off\""},
                      base::ExitCode::bad_input);
  }
  auto const answer = comm::reaches_memory_of(device::backend_name());
  bool const direct =
      choice == config::GpuAware::on || (choice == config::GpuAware::automatic && !on_host && answer.value_or(false));
  collectives::set_gpu_aware(direct);
  if (direct && answer == false) {
    base::warn_root(base::format(
        {.expected = "an MPI library that reaches GPU memory, as comm.gpu_aware = \"on\" says",
         .found = comm::library_version() + ", which says that it does not",
         .where = "comm.gpu_aware",
         .fix = "set comm.gpu_aware = \"auto\", or turn the library's GPU support on (MPICH: "
                "MPIR_CVAR_ENABLE_GPU=1; Cray MPICH: MPICH_GPU_SUPPORT_ENABLED=1; Open MPI: build it with UCX)"}));
  }
  return fmt::format(
      "Messages: {} ({})",
      direct ? "MPI reads and writes GPU memory, and sums it in its own order" : "through pinned host memory",
      choice != config::GpuAware::automatic ? "comm.gpu_aware"
      : on_host                             ? "comm.allreduce"
      : answer                              ? "so says MPI"
                                            : "MPI does not say what it can do");
}

}  // namespace p3d::run
