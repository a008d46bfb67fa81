// SPDX-License-Identifier: Apache-2.0
// Division of layers into stages: evenly, by a list, or by cost. The cost of a layer is its multiply-adds per token;
// the head counts on the last stage and the embedding nothing, so with "cost" the last stage gets fewer layers.
#include <p3d/layout/stages.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace p3d::layout {

namespace {

/// Puts stage s on rank s % ranks, as many stages on every rank.
std::vector<int> in_turn(std::size_t stages, int ranks) {
  P3D_REQUIRE(ranks >= 1, "there is at least one pipeline rank");
  P3D_REQUIRE(stages % static_cast<std::size_t>(ranks) == 0, "every pipeline rank has the same number of stages");
  std::vector<int> out(stages);
  for (std::size_t s = 0; s < stages; ++s) out[s] = static_cast<int>(s % static_cast<std::size_t>(ranks));
  return out;
}

}  // namespace

StageMap::StageMap(std::vector<int> const& layers_per_stage, int num_pipeline_ranks)
    : StageMap(layers_per_stage, in_turn(layers_per_stage.size(), num_pipeline_ranks), num_pipeline_ranks) {}

StageMap::StageMap(std::vector<int> layers_per_stage, std::vector<int> stage_rank, int num_pipeline_ranks)
    : layers_(std::move(layers_per_stage)), stage_rank_(std::move(stage_rank)), num_ranks_(num_pipeline_ranks) {
  P3D_REQUIRE(num_ranks_ >= 1, "there is at least one pipeline rank");
  P3D_REQUIRE(!layers_.empty(), "there is at least one stage");
  P3D_REQUIRE(stage_rank_.size() == layers_.size(), "every stage has its rank");
  begin_.push_back(0);
  for (int n : layers_) {
    P3D_REQUIRE(n >= 0, "no stage has a negative number of layers");
    uncut_begin_.push_back(begin_.back());
    begin_.push_back(begin_.back() + n);
  }
  stages_of_.resize(static_cast<std::size_t>(num_ranks_));
  for (int s = 0; s < num_stages(); ++s) {
    int const r = stage_rank_[static_cast<std::size_t>(s)];
    P3D_REQUIRE(r >= 0 && r < num_ranks_, "every stage lives on a rank that exists");
    stages_of_[static_cast<std::size_t>(r)].push_back(s);
  }
  for (auto const& stages : stages_of_) P3D_REQUIRE(!stages.empty(), "every pipeline rank holds a stage");
}

Range StageMap::layers(int stage) const {
  P3D_REQUIRE(stage >= 0 && stage < num_stages(), "the stage exists");
  auto const at = static_cast<std::size_t>(stage);
  return {begin_[at], begin_[at + 1]};
}

std::vector<int> const& StageMap::stages_of(int pipeline_rank) const {
  P3D_REQUIRE(pipeline_rank >= 0 && pipeline_rank < num_ranks_, "the pipeline rank exists");
  return stages_of_[static_cast<std::size_t>(pipeline_rank)];
}

std::vector<int> even_layers(int layers, int stages) {
  P3D_REQUIRE(layers >= 0 && stages >= 1, "there are stages to deal layers to");
  std::vector<int> out(static_cast<std::size_t>(stages), layers / stages);
  for (int s = 0; s < layers % stages; ++s) ++out[static_cast<std::size_t>(s)];
  return out;
}

StageMap refine(StageMap const& stages, std::vector<int> const& parts) {
  P3D_REQUIRE(parts.size() == static_cast<std::size_t>(stages.num_stages()), "every stage has a number of parts");
  std::vector<int> layers, ranks;
  std::vector<std::int64_t> uncut;
  for (int s = 0; s < stages.num_stages(); ++s) {
    for (int n : even_layers(stages.num_layers(s), parts[static_cast<std::size_t>(s)])) {
      layers.push_back(n);
      ranks.push_back(stages.pipeline_rank(s));
      uncut.push_back(stages.uncut_begin(s));
    }
  }
  StageMap out(std::move(layers), std::move(ranks), stages.num_pipeline_ranks());
  out.shares_tied_ = stages.num_stages() == 1 && out.num_stages() > 1;
  out.uncut_begin_ = std::move(uncut);
  out.vocabulary_divided_ = stages.vocabulary_divided_;
  return out;
}

StageMap StageMap::with_vocabulary(bool divided) const {
  auto out = *this;
  out.vocabulary_divided_ = divided;
  return out;
}

int least_layers(int stage, int stages) { return stages > 1 && (stage == 0 || stage == stages - 1) ? 0 : 1; }

std::vector<int> balanced_layers(int layers, std::vector<int> const& stage_rank, double layer_cost, double first_cost,
                                 double last_cost) {
  auto const stages = stage_rank.size();
  P3D_REQUIRE(stages >= 1, "there is a stage");
  std::vector<int> out(stages);
  for (std::size_t s = 0; s < stages; ++s) out[s] = least_layers(static_cast<int>(s), static_cast<int>(stages));
  int given = std::accumulate(out.begin(), out.end(), 0);
  P3D_REQUIRE(layers >= given, "there is a layer for every stage that needs one");
  std::vector<double> cost(stages),
      total(static_cast<std::size_t>(*std::max_element(stage_rank.begin(), stage_rank.end())) + 1);
  auto const rank_of = [&](std::size_t s) { return static_cast<std::size_t>(stage_rank[s]); };
  for (std::size_t s = 0; s < stages; ++s) {
    cost[s] = out[s] * layer_cost + (s == 0 ? first_cost : 0.0) + (s + 1 == stages ? last_cost : 0.0);
    total[rank_of(s)] += cost[s];
  }
  // Each further layer goes where the rank, then the stage, is cheapest with it (the earliest of equals). Costs are a
  // constant plus a multiple of one layer, so this greedy choice is the exact minimum of the maximum.
  using Choice = std::pair<double, std::size_t>;  // (cost, stage)
  std::vector<std::set<Choice>> of_rank(total.size());
  for (std::size_t s = 0; s < stages; ++s) of_rank[rank_of(s)].emplace(cost[s], s);
  std::set<std::tuple<double, double, std::size_t>> best_of_rank;  // (total, cost, stage)
  auto const entry = [&](std::size_t r) {
    return std::tuple(total[r], of_rank[r].begin()->first, of_rank[r].begin()->second);
  };
  for (std::size_t r = 0; r < total.size(); ++r)
    if (!of_rank[r].empty()) best_of_rank.insert(entry(r));
  for (; given < layers; ++given) {
    std::size_t const best = std::get<2>(*best_of_rank.begin()), r = rank_of(best);
    best_of_rank.erase(best_of_rank.begin());
    of_rank[r].erase({cost[best], best});
    ++out[best];
    cost[best] += layer_cost;
    total[r] += layer_cost;
    of_rank[r].emplace(cost[best], best);
    best_of_rank.insert(entry(r));
  }
  return out;
}

namespace {

/// The number of layers of each stage, as pipeline.layers_per_stage asks.
std::vector<int> deal_layers(config::Config const& config, std::vector<int> const& stage_rank) {
  auto const& m = config.model;
  auto const layers = static_cast<int>(m.layers);
  switch (config.pipeline.layer_split) {
    case config::LayerSplit::even: break;
    case config::LayerSplit::list: {
      auto const& list = config.pipeline.layers_per_stage;
      P3D_REQUIRE(std::accumulate(list.begin(), list.end(), 0) == layers,
                  "pipeline.layers_per_stage sums to model.layers");
      return list;
    }
    case config::LayerSplit::cost: {
      // Multiply-adds per token of the mean layer (model.window, model.moe). The embedding is a look-up and costs
      // nothing; causal attention reads half the sequence, or the window but for the first tokens.
      auto const h = static_cast<double>(m.hidden);
      auto const projections = static_cast<double>(m.attention_weights());
      double keys = 0.0, ffn = 0.0;
      for (std::int64_t l = 0; l < m.layers; ++l) {
        auto const window = m.window_of(l);
        auto const most = static_cast<double>(window > 0 ? std::min(window, m.seq_len) : m.seq_len);
        keys += most - 0.5 * most * most / static_cast<double>(m.seq_len);
        ffn += static_cast<double>(m.active_ffn(l));
      }
      double const attention = 0.5 * m.operations_per_key() * keys / static_cast<double>(m.layers);
      ffn /= static_cast<double>(m.layers);
      double const mlp = h * ffn * m.mlp_matrices();
      // A head that is divided over the pipeline costs all ranks the same.
      double const head = config.divides_vocabulary() ? 0.0 : h * static_cast<double>(m.vocab_size);
      double const layer = projections + attention + mlp;
      // A block of multi-token prediction has a layer, the matrix in front of it, and the head once more.
      double const block = layer + 2 * h * h + head;
      return balanced_layers(layers, stage_rank, layer, 0.0, head + static_cast<double>(m.mtp.depth) * block);
    }
  }
  return even_layers(layers, static_cast<int>(stage_rank.size()));
}

StageMap placed(config::Config const& config, std::vector<int> layers, std::vector<int> const& stage_rank) {
  return StageMap(std::move(layers), stage_rank, config.parallel.pp).with_vocabulary(config.divides_vocabulary());
}

}  // namespace

StageMap make_stage_map(config::Config const& config) {
  auto const one_each = in_turn(static_cast<std::size_t>(config.parallel.pp), config.parallel.pp);
  return placed(config, deal_layers(config, one_each), one_each);
}

StageMap make_stage_map(config::Config const& config, std::vector<int> const& stage_rank) {
  auto const stages = static_cast<int>(stage_rank.size());
  auto const refuse = [&](std::string found, char const* where) {
    base::refuse(
        {.expected = fmt::format("at least one layer for each of the {} stages of the schedule{}", stages,
                                 stages > 2 ? ", the first and the last excepted with \"cost\" or a list" : ""),
         .found = std::move(found),
         .where = where,
         .fix = "give each stage a layer, or choose a schedule with fewer stages per rank (pipeline.virtual_stages)"});
  };
  bool const even = config.pipeline.layer_split == config::LayerSplit::even;
  if (config.model.layers < (even ? stages : std::max(1, stages - 2)))
    refuse(base::counted(config.model.layers, "layer"), "model.layers");
  auto layers = deal_layers(config, stage_rank);
  if (layers.size() != stage_rank.size())
    refuse(fmt::format("pipeline.layers_per_stage has {} entries", layers.size()), "pipeline.layers_per_stage");
  for (int s = 0; s < stages; ++s) {
    if (layers[static_cast<std::size_t>(s)] < least_layers(s, stages))
      refuse(fmt::format("none for stage {}", s), "pipeline.layers_per_stage");
  }
  return placed(config, std::move(layers), stage_rank);
}

}  // namespace p3d::layout
