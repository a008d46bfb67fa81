// SPDX-License-Identifier: Apache-2.0
#include <p3d/report/add_to_summary.hpp>

#include <p3d/base/process.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/version.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/io/hdf5_version.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/plan/model_cost.hpp>

#include <fmt/format.h>

namespace p3d::report {

void add_machine(plan::RunSummary& s, config::Config const& c) {
  auto const blas = linalg::blas_version();
  auto const node = comm::node_share();
  s.run = c.run.name;
  s.steps = c.run.steps;
  s.program = fmt::format("{}{}\nMPI             {}\nHDF5            {}", base::build_description(),
                          blas.empty() ? "" : " (" + blas + ")", comm::library_version(), io::hdf5_version());
  s.host = base::host_name();
  s.backend = device::backend_name();
  s.ranks_on_node = node.ranks;
  s.cores_on_node = node.cores;
  s.threads = device::host_threads();
}

void add_plan(plan::RunSummary& s, config::Config const& c, engine::RunPlan const& plan) {
  std::vector<std::string> axes;
  for (auto a : config::shown_axes(plan.grid.sizes()).list())
    axes.push_back(fmt::format("{} {}", layout::name(a), plan.grid.sizes()[a]));
  s.layout = base::join(axes);
  s.schedule = c.pipeline.schedule;
  s.precision = to_string(c.run.precision);
  if (c.precision.autocast != config::Autocast::none)
    s.precision += fmt::format(", GEMMs multiply in {}", to_string(c.precision.autocast));
  s.stages = plan.stages.num_stages();
  s.microbatches = c.batch.microbatches;
  s.parameters = plan.table.num_parameters();
  s.tokens_per_step = c.batch.global * c.model.seq_len;
  // The counts are for samples of model.seq_len tokens: with shorter ones they would not belong to tokens_per_step.
  if (!c.batch.variable) {
    s.model_flops_per_step = plan::model_flops_per_step(c);
    s.recomputed_flops_per_step = plan::recompute_flops_per_step(c, plan);
  }
  s.memory_of_ranks = plan.memory;
}

void add_measured(plan::RunSummary& s, engine::PhaseSpread const& phases, double memory_before, double memory_now) {
  s.phases.clear();
  for (std::size_t i = 0; i < engine::num_phases; ++i) {
    auto const p = static_cast<engine::Phase>(i);
    s.phases.push_back({engine::name(p), phases.min[p], phases.mean[p], phases.max[p]});
  }
  if (memory_before > 0.0 && memory_now > 0.0) {
    s.memory_before = memory_before;
    s.memory_found = memory_now - memory_before;
  }
}

}  // namespace p3d::report
