// SPDX-License-Identifier: Apache-2.0
// The mesh of a rank and its groups, and the choices that depend on where ranks lie: how messages over tp and GEMMs
// overlap, and how often GEMMs look after messages.
#include <p3d/engine/backend.hpp>
#include "rank_context.hpp"

#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/layout/communicators.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/layout/experts.hpp>
#include <p3d/linalg/gemm.hpp>

#include <fmt/format.h>

#include <algorithm>
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

/// Bytes that go over tp for each FLOP of a rank, below which GEMMs hide more the more chunks there are. Each chunk is
/// a smaller GEMM, which costs more than it hides where the link is quicker. Measured once: a rank of 100 GFLOP/s has 8
/// chunks 5 % before 2 at 1 Gbit/s, and 3 % behind at 5 to 8 Gbit/s.
constexpr double slow_link = 0.003;

/// The bytes a second at which this rank sends over tp while all ranks do. Collective.
double measured_rate(RankContext& rank) {
  auto& tp = rank.mesh.along("tp");
  device::Owned1<float> const buffer("p3d::engine::measured_rate", std::size_t{1} << 20);
  double best = 0.0;
  for (int turn = 0; turn < 3; ++turn) {
    base::Stopwatch const watch;
    collectives::start_all_reduce<float>(rank.exec, tp, buffer).wait();
    auto const sent = 2.0 * (tp.size() - 1) / tp.size() * static_cast<double>(buffer.size() * sizeof(float));
    if (turn > 0) best = std::max(best, sent / watch.seconds());  // connections are made in the first
  }
  tp.reset_accounting();
  return best;
}

/// The FLOPs a second of this rank's GEMMs.
double measured_flops(RankContext& rank) {
  device::Owned2<float> const a("p3d::engine::measured_flops", 1024, 512), b("p3d::engine::measured_flops", 512, 512),
      c("p3d::engine::measured_flops", 1024, 512);
  double best = 0.0;
  for (int turn = 0; turn < 3; ++turn) {
    base::Stopwatch const watch;
    linalg::gemm<float>(rank.exec, linalg::Op::none, linalg::Op::none, 1.0F, a, b, 0.0F, c);
    best = std::max(best, 2.0 * 1024 * 512 * 512 / watch.seconds());
  }
  return best;
}

parallel::TpOverlap tp_overlap(RankContext& rank) {
  auto const& c = rank.config;
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
  // The number of chunks may change last bits (docs/performance.md), so runs that are to repeat go by a rule.
  if (!device::on_host() || c.parallel.tp == 1 || c.run.deterministic) return {};
  std::int64_t const nodes = rank.mesh.along("tp").nodes();  // a group that lies on one node goes along with the others
  if (collectives::all_reduce(rank.mesh.world(), nodes, comm::Reduction::max) == 1) return {};
  auto const least = [&](double x) { return collectives::all_reduce(rank.mesh.world(), x, comm::Reduction::min); };
  auto const rate = least(measured_rate(rank)), flops = least(measured_flops(rank));
  auto const overlap =
      rate < slow_link * flops ? parallel::TpOverlap{.chunks = 8, .chunk_rows = 64} : parallel::TpOverlap{};
  base::log_root(fmt::format("Overlap over tp (comm.overlap_tp): up to {} chunks; between nodes {}/s", overlap.chunks,
                             base::human_bytes(rate)));
  return overlap;
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
      tp{exec, &mesh.along("tp"), c.parallel.sequence},
      context(c.parallel.cp > 1 ? parallel::ContextParallel(mesh.along("cp"), layout::context_division(c))
                                : parallel::ContextParallel()),
      experts(expert_parallel(*this)) {
  set_operands(c);
}

void RankContext::choose_overlap() { tp.overlap = tp_overlap(*this); }

base::Polls RankContext::polls() {
  if (!config.run.deterministic) return base::Polls::as_answered;
  bool const tp_travels = mesh.along("tp").nodes() > 1 && config.comm.overlap_tp != config::OverlapTp::none;
  return device::on_host() && tp_travels ? base::Polls::often : base::Polls::rare;
}

double RankContext::wait_seconds() {
  return mesh.along("tp").accounting().wait_seconds + context.wait_seconds() + experts.wait_seconds();
}

}  // namespace p3d::engine
