// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/run_plan.hpp>

#include <p3d/comm/nccl.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/executor.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/kernels/fused_attention.hpp>

#include <utility>

namespace p3d::engine {

static_assert(Executor::sends_in_flight == execution.sends_in_flight);

plan::Platform platform() {
  return {.gpu = !device::on_host(),
          .device_form = kernels::have_device_form(),
          .host_reaches_views = device::host_reaches_views,
          .nccl = comm::has_nccl(),
          .fused_attention = !kernels::fused_attention_name().empty(),
          .threads = Kokkos::is_initialized() ? device::host_threads() : 1};
}

RunPlan make_run_plan(config::Config const& c) { return plan::make_run_plan(c, platform()); }

RunPlan make_run_plan(config::Config const& c, layout::StageMap stages, schedule::ValidProgram training) {
  return plan::make_run_plan(c, std::move(stages), std::move(training), platform());
}

std::int64_t first_sample(config::Config const& c, std::int64_t step, int dp, int microbatch) {
  return step * c.batch.global + dp * (c.batch.global / c.parallel.dp) + microbatch * c.batch.micro;
}

}  // namespace p3d::engine
