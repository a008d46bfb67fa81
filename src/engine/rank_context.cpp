// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/backend.hpp>
#include "rank_context.hpp"

#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/layout/communicators.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/layout/experts.hpp>

#include <utility>

namespace p3d::engine {

namespace {

comm::MeshShape mesh_shape(layout::RankGrid const& grid) {
  comm::MeshShape shape;
  for (auto const& atom : grid.atoms()) shape.dimensions.push_back({atom.name, atom.size});
  auto axes = grid.order();
  for (auto a : layout::expert_axes.list()) axes.push_back(a);
  for (auto a : axes) {
    auto& axis = shape.axes.emplace_back(comm::MeshShape::NamedAxis{layout::name(a), {}});
    for (std::size_t i = 0; i < grid.atoms().size(); ++i) {
      if (grid.atoms()[i].axes.has(a)) axis.dimensions.push_back(i);
    }
  }
  return shape;
}

std::vector<std::vector<std::string>> mesh_sets(RunPlan const& plan, config::Config const& c) {
  std::vector<std::vector<std::string>> sets;
  for (auto set : communicator_sets(plan.table, plan.grid.sizes(), c.memory.divides(), c.compresses()))
    sets.push_back(axis_names(set));
  return sets;
}

parallel::ExpertParallel expert_parallel(RankContext& rank) {
  auto const& model = rank.config.model;
  if (!model.moe.on()) return {};
  auto const axes = layout::expert_exchange_axes(rank.plan.grid.sizes());
  return {axes.empty() ? nullptr : &rank.along(axes),
          layout::expert_group(rank.plan.grid, rank.mesh.world().rank(), static_cast<int>(model.moe.experts))};
}

/// `travels`: messages over tp go from node to node.
parallel::TpOverlap tp_overlap(config::Config const& c, bool travels) {
  using config::OverlapTp;
  bool const interleaves = c.comm.overlap_tp == OverlapTp::microbatch;
  // NCCL's calls for shares are of whole ones, and GPUs' libraries multiply fewer rows by other algorithms.
  bool const whole = c.parallel.sequence && !device::on_host();
  switch (c.comm.overlap_tp) {
    case OverlapTp::none: return {.bulk = false, .chunks = 1};
    case OverlapTp::bulk: return {.chunks = 1};
    case OverlapTp::microbatch:
      if (whole) return {.chunks = 1, .microbatch = true};
      [[fallthrough]];
    case OverlapTp::chunks: return {.chunks = 8, .chunked_bytes = 1, .chunk_rows = 1, .microbatch = interleaves};
    case OverlapTp::automatic: break;
  }
  if (whole) return {.chunks = 1};
  // A message between nodes takes longer than what GEMMs of fewer rows lose.
  if (device::on_host() && travels) return {.chunks = 8, .chunk_rows = 64};
  return {};
}

}  // namespace

std::vector<std::string> axis_names(layout::AxisSet axes) {
  std::vector<std::string> names;
  for (auto a : axes.list()) names.emplace_back(layout::name(a));
  return names;
}

bool StopRequest::anywhere(comm::Communicator& world) {
  if (!asked_) return false;
  early = collectives::all_reduce(world, asked_() ? 1.0 : 0.0) > 0.0;
  return early;
}

RankContext::RankContext(config::Config const& c, RunPlan run_plan, comm::Communicator const& parent)
    : config(c),
      plan(std::move(run_plan)),
      mesh(parent, mesh_shape(plan.grid), mesh_sets(plan, c)),
      here(plan.grid.coordinates(mesh.world().rank())),
      tp{exec, &mesh.along("tp"), c.parallel.sequence, tp_overlap(c, mesh.along("tp").nodes() > 1)},
      context(c.parallel.cp > 1 ? parallel::ContextParallel(mesh.along("cp"), layout::context_division(c))
                                : parallel::ContextParallel()),
      experts(expert_parallel(*this)) {
  set_operands(c);
}

bool RankContext::polls_often() {
  bool const tp_travels = mesh.along("tp").nodes() > 1 && config.comm.overlap_tp != config::OverlapTp::none;
  return device::on_host() && tp_travels;
}

double RankContext::wait_seconds() {
  return mesh.along("tp").accounting().wait_seconds + context.wait_seconds() + experts.wait_seconds();
}

}  // namespace p3d::engine
