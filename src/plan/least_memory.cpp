// SPDX-License-Identifier: Apache-2.0
// Example: 8 B parameters in bf16 with AdamW on 8 ranks need 18 bytes a parameter. With tp = pp = 1 and whole states
// that is 144 GB on each rank, above 80 GB whatever the activations are.
#include "plan/least_memory.hpp"

#include <p3d/layout/stage_buffers.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/memory.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

namespace p3d::plan {
namespace {

using config::Config;
using config::Shard;

/// Bytes of the state of a rank of the pipeline: parts, and whole weights and gradients of one stage where those are
/// divided.
double state_of(Config const& c, StepPredictor::Parameters const& numbers) {
  auto const types = type_bytes(c);
  bool const master = config::is_16bit(c.run.precision);
  auto const state = [&](double parameters, double replicas) {
    auto const part = [&](Shard from) { return c.memory.shard >= from ? replicas : 1; };
    return parameters * (static_cast<double>(types.storage) / part(Shard::parameters) +
                         static_cast<double>(types.gradient) / part(Shard::gradients) +
                         static_cast<double>((master ? types.master : 0) + state_bytes(c)) / part(Shard::optimizer));
  };
  auto const among = [&](double replicas) {
    auto const over = static_cast<double>(c.memory.shard_over);
    return over > 0 ? std::min(over, replicas) : replicas;
  };
  double bytes = state(numbers.dense + numbers.roots, among(static_cast<double>(c.parallel.dp) * c.parallel.cp)) +
                 state(numbers.experts, among(numbers.expert_replicas));
  // Of a stage, or of one of its pieces where the next takes its place.
  auto const stages = std::max(1, c.pipeline.virtual_stages);
  double const whole = (numbers.dense + numbers.experts) / stages;
  double const pieces = std::ceil(static_cast<double>(c.model.layers) / c.parallel.pp / stages /
                                  static_cast<double>(c.memory.shard_layers));
  bool const all_gradients = c.memory.reduce == config::MessageEvery::step && c.batch.microbatches > 1;
  bool const all_weights = c.memory.gather == config::MessageEvery::step;
  if (c.memory.shard >= Shard::gradients)
    bytes += whole / (all_gradients ? 1 : pieces) * static_cast<double>(types.gradient);
  if (c.memory.shard == Shard::parameters)
    bytes += whole / (all_weights ? 1 : pieces) * static_cast<double>(types.storage);
  return bytes;
}

/// True for schedules whose rank r of p has p - r microbatches of the forward pass in flight, or all where there are
/// fewer. Others may hold one at a time.
bool fills_from_the_front(std::string_view schedule) {
  constexpr std::array<std::string_view, 8> names{
      "1f1b", "eager_1f1b", "interleaved_1f1b", "gpipe", "looped_bfs", "zb_h1", "zb_h2", "zb_v"};
  return std::ranges::find(names, schedule) != names.end();
}

}  // namespace

double LeastMemory::bytes(Config const& c) {
  auto const& one = layer_bytes(c);
  auto const pp = c.parallel.pp;
  double const layers = std::floor(static_cast<double>(c.model.layers) / pp);
  bool const fills =
      fills_from_the_front(c.pipeline.schedule) && c.memory.offload_activations == config::OffloadTo::none;
  auto const flying = [&](int rank) {
    return static_cast<double>(fills ? std::min<std::int64_t>(pp - rank, c.batch.microbatches) : 1);
  };
  auto const held = [&](StepPredictor::Parameters const& numbers, double microbatches, double of_layers) {
    return state_of(c, numbers) + microbatches * (one.layer * of_layers + one.stage);
  };
  auto const numbers = predictor_.parameters(c);
  // Parameters are counted with biases that the model may not have.
  constexpr double without_biases = 0.99;
  double const largest = held(numbers.largest, 1, 1) + one.workspace;
  // Of layers that are not evenly divided some rank has at least the mean, and it may be any.
  if (c.pipeline.layer_split != config::LayerSplit::even) return without_biases * std::max(largest, one.layer * layers);
  // The first rank of a pipeline has most microbatches in flight. Another one may have larger layers; the workspace of
  // these counts too.
  double const first = held(numbers.first, flying(0), layers);
  double const middle = held(numbers.middle, flying(pp / 2), layers) + one.workspace;
  return without_biases * std::max({first, middle, largest});
}

LeastMemory::LayerBytes const& LeastMemory::layer_bytes(Config const& c) {
  auto const& p = c.parallel;
  auto const [place, added] = layer_bytes_.try_emplace(
      {p.tp, p.cp, p.ep, static_cast<int>(c.memory.recompute), c.divides_vocabulary() ? p.pp : 0, c.batch.micro},
      LayerBytes{});
  if (!added) return place->second;
  // Stages of one layer, and the same with one stage of two: the first, the last and their outputs do not count.
  Config single = c;
  single.model.layers = std::max<std::int64_t>(4, c.model.layers);
  single.parallel.pp = static_cast<int>(single.model.layers);
  single.pipeline.schedule = "1f1b";
  single.pipeline.layer_split = config::LayerSplit::even;  // a list is for another number of stages
  single.pipeline.virtual_stages = 0;
  single.memory.recompute_every = single.memory.recompute_group = 1;  // a group is no longer than a stage
  single.memory.recompute_microbatches_kept = 0;
  auto const types = element_bytes(single);
  auto const stages_with = [&](int stage, int layers) {
    std::vector<int> list(static_cast<std::size_t>(single.model.layers - layers + 1), 1);
    list[static_cast<std::size_t>(stage)] = layers;
    return layout::StageMap(list, static_cast<int>(list.size())).with_vocabulary(c.divides_vocabulary());
  };
  auto& out = place->second;
  auto const last = static_cast<int>(single.model.layers) - 1;
  for (bool const experts : {false, true}) {
    int stage = 1;
    while (stage + 1 < last && single.model.has_experts(stage) != experts) ++stage;
    if (stage + 1 >= last) continue;
    auto const added_by_slot = [&](int layers) {
      auto const stages = stages_with(stage, layers);
      auto sized = single;
      sized.parallel.pp = stages.num_stages();
      auto const recompute = layout::stage_recompute(single.memory, stages, stage);
      auto const bytes = [&](int slots) {
        layout::StageActivations const sets{.slots = slots, .recompute = recompute};
        return static_cast<double>(layout::stage_bytes(sized, stages, stage, sets, types).total());
      };
      return bytes(2) - bytes(1);
    };
    double const one = added_by_slot(1), layer = added_by_slot(2) - one;
    auto const least = [](double& known, double found) { known = known > 0 ? std::min(known, found) : found; };
    least(out.layer, layer);
    least(out.stage, std::max(0.0, one - layer));
    layout::RecomputeScratch scratch;
    scratch.add(layout::stage_recompute(single.memory, stages_with(stage, 1), stage));
    out.workspace = static_cast<double>(layout::workspace_bytes(single, scratch, false, types, !kernels_.host).total());
  }
  // A group of layers that are made again together keeps one input.
  if (c.memory.recompute == config::Recompute::full) out.layer /= static_cast<double>(c.memory.recompute_group);
  if (c.divides_vocabulary()) out.workspace += static_cast<double>(layout::vocabulary_bytes(c, types).total());
  return out;
}

}  // namespace p3d::plan
