#include <p3d/layout/stages.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace p3d::layout {

StageMap::StageMap(std::vector<int> layers_per_stage, int num_pipeline_ranks)
    : layers_(std::move(layers_per_stage)), num_ranks_(num_pipeline_ranks) {
  P3D_REQUIRE(num_ranks_ >= 1, "there is at least one pipeline rank");
  P3D_REQUIRE(!layers_.empty(), "there is at least one stage");
  P3D_REQUIRE(num_stages() % num_ranks_ == 0, "every pipeline rank has the same number of stages");
  for (int n : layers_) P3D_REQUIRE(n >= 0, "no stage has a negative number of layers");
}

int StageMap::num_layers() const { return std::accumulate(layers_.begin(), layers_.end(), 0); }

Range StageMap::layers(int stage) const {
  P3D_REQUIRE(stage >= 0 && stage < num_stages(), "the stage exists");
  auto const first = layers_.begin();
  std::int64_t const begin = std::accumulate(first, first + stage, std::int64_t{0});
  return {begin, begin + layers_[static_cast<std::size_t>(stage)]};
}

std::vector<int> StageMap::stages_of(int pipeline_rank) const {
  P3D_REQUIRE(pipeline_rank >= 0 && pipeline_rank < num_ranks_, "the pipeline rank exists");
  std::vector<int> out;
  for (int s = pipeline_rank; s < num_stages(); s += num_ranks_) out.push_back(s);
  return out;
}

std::vector<int> even_layers(int layers, int stages) {
  P3D_REQUIRE(layers >= 0 && stages >= 1, "there are stages to deal layers to");
  std::vector<int> out(static_cast<std::size_t>(stages), layers / stages);
  for (int s = 0; s < layers % stages; ++s) ++out[static_cast<std::size_t>(s)];
  return out;
}

std::vector<int> balanced_layers(int layers, int stages, double layer_cost, double first_cost, double last_cost) {
  P3D_REQUIRE(stages >= 1 && layers >= stages, "there is a layer for every stage");
  // Every stage gets one layer; each further layer goes where the stage is cheapest after it (the earliest of equals).
  // Stage costs are a constant plus a multiple of one layer, so this greedy choice is the exact minimum of the maximum.
  std::vector<int> out(static_cast<std::size_t>(stages), 1);
  std::vector<double> cost(static_cast<std::size_t>(stages), layer_cost);
  cost.front() += first_cost;
  cost.back() += last_cost;
  for (int given = stages; given < layers; ++given) {
    auto const cheapest = std::min_element(cost.begin(), cost.end());
    *cheapest += layer_cost;
    ++out[static_cast<std::size_t>(cheapest - cost.begin())];
  }
  return out;
}

StageMap make_stage_map(config::Config const& config) {
  auto const& m = config.model;
  auto const layers = static_cast<int>(m.layers);
  int const stages = config.parallel.pp;
  switch (config.pipeline.layer_split) {
    case config::LayerSplit::even: break;
    case config::LayerSplit::list: {
      StageMap map(config.pipeline.layers_per_stage, stages);
      P3D_REQUIRE(map.num_layers() == layers, "pipeline.layers_per_stage sums to model.layers");
      return map;
    }
    case config::LayerSplit::cost: {
      // Multiply-adds per token. The embedding is a look-up and costs nothing; causal attention reads half the sequence.
      auto const h = static_cast<double>(m.hidden);
      auto const width = static_cast<double>(m.heads * m.head_dim());
      auto const kv_width = static_cast<double>(m.kv_heads * m.head_dim());
      double const projections = h * (2.0 * width + 2.0 * kv_width);
      double const attention = width * static_cast<double>(m.seq_len);
      double const mlp = h * static_cast<double>(m.ffn) * (m.activation == config::Activation::swiglu ? 3.0 : 2.0);
      double const head = h * static_cast<double>(m.vocab_size);
      return StageMap(balanced_layers(layers, stages, projections + attention + mlp, 0.0, head), stages);
    }
  }
  return StageMap(even_layers(layers, stages), stages);
}

}  // namespace p3d::layout
