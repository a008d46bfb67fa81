#include "gpu_aware.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/device/environment.hpp>

#include <fmt/format.h>

namespace p3d::runtime {

std::string choose_message_path(config::GpuAware choice) {
  if (device::on_host()) return "";
  auto const answer = comm::reaches_memory_of(device::backend_name());
  bool const direct = choice == config::GpuAware::on || (choice == config::GpuAware::automatic && answer.value_or(false));
  collectives::set_gpu_aware(direct);
  if (direct && answer == false) {
    base::warn_root(base::format({.expected = "an MPI library that reaches GPU memory, as comm.gpu_aware = \"on\" says",
                                  .found = comm::library_version() + ", which says that it does not",
                                  .where = "comm.gpu_aware",
                                  .fix = "set comm.gpu_aware = \"auto\", or turn the library's GPU support on (MPICH: "
                                         "MPIR_CVAR_ENABLE_GPU=1; Cray MPICH: MPICH_GPU_SUPPORT_ENABLED=1; Open MPI: build it with UCX)"}));
  }
  return fmt::format("Messages: {} ({})", direct ? "MPI reads and writes GPU memory" : "through pinned host memory",
                     choice != config::GpuAware::automatic ? "comm.gpu_aware"
                     : answer                              ? "so says MPI"
                                                           : "MPI does not say what it can do");
}

}  // namespace p3d::runtime
