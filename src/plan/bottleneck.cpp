// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/bottleneck.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace p3d::plan {

namespace {

/// From this share of the time on something other than compute is worth a change of keys.
constexpr double worth_a_change = 0.05;

/// The name of a bottleneck, and the change of the input that would help.
struct Words {
  std::string name, help;
};

Words words_of_messages(config::Axis axis, Setup const& setup) {
  auto name = fmt::format("communication over {}", config::name(axis));
  if (axis == config::Axis::dp)
    return {name, "more microbatches a step (batch.microbatches), or another comm.allreduce"};
  if (axis == config::Axis::ep)
    return {name,
            setup.overlaps_experts ? "a smaller parallel.ep" : "comm.overlap_experts = true, or a smaller parallel.ep"};
  return {name, fmt::format("a smaller parallel.{0}, or {0} first in parallel.order", config::name(axis))};
}

Words words_of(BottleneckFinding const& finding, Setup const& setup) {
  switch (finding.what) {
    case Bottleneck::compute: break;
    case Bottleneck::pipeline_plan:
      return {"pipeline wait by plan", "more microbatches (batch.microbatches) or another pipeline.schedule"};
    case Bottleneck::pipeline_messages:
      return {"pipeline messages", "earlier receives (pipeline.lookahead) or neighbouring ranks (parallel.order)"};
    case Bottleneck::slow_rank:
      return {"a slow rank",
              "other stages (pipeline.layers_per_stage) or another node; run.trace = true shows which rank it is"};
    case Bottleneck::messages: return words_of_messages(finding.axis, setup);
    case Bottleneck::data: return {"data and other work of the host", "larger microbatches (batch.micro)"};
    case Bottleneck::disk: return {"checkpoints", "fewer of them (checkpoint.every)"};
    case Bottleneck::optimizer:
      return {"the optimizer", setup.divides_update ? "more ranks, or more samples a step (batch.global)"
                                                    : "an update divided over replicas (memory.shard = \"optimizer\")"};
  }
  return {"compute",
          setup.recomputes ? "more ranks, or memory.recompute = \"none\" where memory allows it" : "more ranks"};
}

}  // namespace

BottleneckFinding find_bottleneck(TimeShares const& s) {
  double const by_plan = std::min(s.pipeline_wait, s.planned_wait);
  double const beyond = s.pipeline_wait - by_plan;
  double messages = beyond;
  for (auto a : config::all_axes) messages += a == config::Axis::pp ? 0.0 : s.along(a);
  // Nobody waits for a rank longer than all messages took.
  double const slow = std::min(s.slow_rank, messages);
  double const left = messages > 0.0 ? 1.0 - slow / messages : 0.0;
  BottleneckFinding worst{Bottleneck::pipeline_plan, by_plan};
  auto const consider = [&](Bottleneck what, double share, config::Axis axis = {}) {
    if (share > worst.share) worst = {what, share, axis};
  };
  consider(Bottleneck::slow_rank, slow);
  consider(Bottleneck::pipeline_messages, left * beyond);
  for (auto a : config::all_axes)
    if (a != config::Axis::pp) consider(Bottleneck::messages, left * s.along(a), a);
  consider(Bottleneck::data, s.data);
  consider(Bottleneck::disk, s.disk);
  consider(Bottleneck::optimizer, s.optimizer);
  if (worst.share >= worth_a_change) return worst;
  return {Bottleneck::compute, std::max(0.0, 1.0 - by_plan - messages - s.data - s.disk - s.optimizer)};
}

std::string describe(BottleneckFinding const& f, Setup const& setup) {
  auto const words = words_of(f, setup);
  return fmt::format("{}, {:.1f} % of the time; what would help: {}", words.name, 100.0 * f.share, words.help);
}

}  // namespace p3d::plan
