// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/backend.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/view.hpp>
#include <p3d/linalg/operands.hpp>

#include <fmt/format.h>

#include <utility>

#include "device_sums.hpp"

namespace p3d::engine {

namespace {

[[noreturn]] void refuse(std::string expected, std::string found, std::string fix) {
  base::refuse({.expected = std::move(expected) + ", for comm.backend = \"nccl\"",
                .found = std::move(found),
                .where = "comm.backend",
                .fix = "set comm.backend to \"auto\" or \"mpi\", or " + std::move(fix)});
}

/// Waits for NCCL under the watch of comm.timeout_s, so that the fence behind it does not wait for other ranks.
void settle_before_fence() {
  static bool settling = false;  // waits may fence too
  if (settling) return;
  struct Guard {
    Guard() { settling = true; }
    ~Guard() { settling = false; }
  } const guard;
  comm::settle();
}

}  // namespace

bool choose_nccl(config::Config const& config, comm::Communicator& world) {
  auto const backend = config.comm.backend;
  bool const asked = backend == config::Backend::nccl;
  if (backend == config::Backend::mpi) return false;
  if (collectives::views_are_on_host()) {
    if (asked) {
      refuse("kernels on GPUs",
             fmt::format("kernels on the host (Kokkos' {}), data in its memory", device::backend_name()),
             "build p3d with a Kokkos for NVIDIA's or AMD's GPUs");
    }
    return false;
  }
  if (!comm::has_nccl()) {
    if (asked) refuse("NCCL or RCCL", "a build of p3d without", "configure p3d with -DP3D_NCCL=ON");
    return false;
  }
  if (world.size() == 1) return false;
  bool const one_each = comm::one_gpu_each(world);
  if (!one_each && asked) refuse("a GPU for each rank", "two ranks on the same GPU", "start one rank for each GPU");
  if (!one_each) return false;
  if (config.run.deterministic && !comm::has_device_sums()) use_device_sums();
  device::set_before_fence(settle_before_fence);
  return true;
}

bool set_operands(config::Config const& config) {
  using linalg::Operands;
  auto const cast = config.precision.autocast;
  if (cast == config::Autocast::none)
    return linalg::round_operands(config.linalg.tf32 ? Operands::tf32 : Operands::fp32);
  if (!linalg::round_operands(cast == config::Autocast::bf16 ? Operands::bf16 : Operands::fp16))
    base::refuse("GEMMs that round what they multiply to 16 bits, as processors and NVIDIA's GPUs have them",
                 fmt::format("precision.autocast = \"{}\" on a GPU whose library has none", to_string(cast)),
                 "precision.autocast",
                 fmt::format("leave precision.autocast out, or set run.precision = \"{}\"", to_string(cast)));
  return true;
}

}  // namespace p3d::engine
