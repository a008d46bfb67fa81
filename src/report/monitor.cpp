// SPDX-License-Identifier: Apache-2.0
// The monitor. The wait of a pipeline is compared with that of its plan by simulation; time inside layers is divided
// among axes in proportion to the waits that their communicators count.
#include <p3d/report/monitor.hpp>

#include <p3d/collectives/collectives.hpp>
#include <p3d/layout/communicators.hpp>
#include <p3d/plan/pipeline.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace p3d::report {

namespace {

using engine::Phase;

/// The share of the time from the first to the last action of compute in which ranks wait by plan; 1 for programs that
/// take long to simulate.
double planned_bubble(config::Config const& c, engine::RunPlan const& plan) {
  constexpr std::size_t quick = 200'000;
  std::size_t actions = 0;
  for (auto const& list : plan.training->ranks) actions += list.size();
  if (actions > quick) return 1.0;
  return plan::planned_bubble(plan, plan::model_costs(c, plan.stages));
}

/// Divides the time inside layers among the axes whose communicators were waited for. Collective.
void divide_layers(engine::AnyTrainer& trainer, double share, plan::TimeShares& shares) {
  auto const& sizes = trainer.plan().grid.sizes();
  std::vector<std::pair<layout::Axis, comm::Mesh::Names>> groups;
  for (auto a : layout::sample_axes.list())
    if (sizes[a] > 1) groups.push_back({a, {layout::name(a)}});
  if (auto const axes = layout::expert_exchange_axes(sizes); trainer.config().model.moe.on() && !axes.empty()) {
    auto& names = groups.emplace_back(layout::Axis::ep, comm::Mesh::Names{}).second;
    for (auto a : axes.list()) names.emplace_back(layout::name(a));
  }
  double sum = 0.0;
  std::vector<double> waits;
  for (auto const& [axis, names] : groups) {
    double const mine = trainer.mesh().along(names).accounting().wait_seconds;
    sum += waits.emplace_back(collectives::all_reduce(trainer.mesh().world(), mine));
  }
  if (sum <= 0.0) return;
  for (std::size_t i = 0; i < groups.size(); ++i) shares.along(groups[i].first) += share * waits[i] / sum;
}

}  // namespace

plan::TimeShares time_shares(engine::AnyTrainer& trainer, engine::PhaseTimes const& mine,
                             engine::PhaseSpread const& phases, double disk_s) {
  auto& world = trainer.mesh().world();
  auto const ranks = static_cast<double>(world.size());
  double const disk = collectives::all_reduce(world, disk_s) / ranks;
  double const compute = mine[Phase::forward] + mine[Phase::backward];
  double const busiest = collectives::all_reduce(world, compute, comm::Reduction::max);
  auto const& mean = phases.mean;
  plan::TimeShares shares;
  double const total = mean.total() + disk;
  if (total <= 0.0) return shares;
  double const computed = mean[Phase::forward] + mean[Phase::backward];
  shares.pipeline_wait = mean[Phase::pipeline_wait] / total;
  shares.slow_rank = (busiest - computed) / total;
  shares.along(layout::Axis::dp) = mean[Phase::dp_comm] / total;
  shares.data = mean[Phase::other] / total;
  shares.disk = disk / total;
  shares.optimizer = mean[Phase::optimizer] / total;
  if (trainer.config().parallel.pp > 1)
    shares.planned_wait = planned_bubble(trainer.config(), trainer.plan()) *
                          (computed + mean[Phase::stage_comm] + mean[Phase::pipeline_wait]) / total;
  divide_layers(trainer, mean[Phase::stage_comm] / total, shares);
  return shares;
}

std::string bottleneck(engine::AnyTrainer& trainer, engine::PhaseTimes const& mine, engine::PhaseSpread const& phases,
                       double disk_s) {
  auto const shares = time_shares(trainer, mine, phases, disk_s);
  if (phases.mean.total() <= 0.0) return "";
  auto const& c = trainer.config();
  plan::Setup const setup{.recomputes = plan::recompute_flops_per_step(c, trainer.plan()) > 0.0,
                          .divides_update = c.memory.shard != config::Shard::none || c.parallel.dp * c.parallel.cp == 1,
                          .overlaps_experts = c.comm.overlap_experts};
  return plan::describe(plan::find_bottleneck(shares), setup);
}

}  // namespace p3d::report
