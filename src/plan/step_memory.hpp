// SPDX-License-Identifier: Apache-2.0
#pragma once
// A step predictor remembers from one layout to the next what the two share (p3d/plan/step_time.hpp).

#include <p3d/config/axes.hpp>
#include <p3d/plan/step_time.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plan/layer_time.hpp"

namespace p3d::plan {

/// Layers [begin, end) of the model.
struct Layers {
  std::int64_t begin = 0, end = 0;
};
/// The layers of a rank of the pipeline: those of each of its stages.
using RankLayers = std::vector<Layers>;

/// Times and sizes that layouts of one model share. Layers are of one kind where only their place differs.
struct StepPredictor::Memory {
  /// Times that depend on the sizes of the mesh and of the microbatch alone.
  struct Entry {
    std::vector<LayerPasses> kinds;
    double head = 0, embedding = 0;
  };
  using Key = std::array<std::int64_t, 9>;
  std::map<Key, Entry> entries;
  Key last_key{};
  Entry const* last = nullptr;
  std::vector<std::int64_t> first;                ///< the first layer of each kind
  std::vector<std::vector<std::int64_t>> before;  ///< how many layers before layer l are of kind k: before[k][l]
  std::string order_text;
  std::vector<config::Axis> order;
  std::vector<LayerTime> kinds;  ///< times of the layout that is predicted now
  /// Layers of each rank, where pipeline.layers_per_stage divides them: by ranks, schedule, virtual stages and
  /// whether the vocabulary is divided.
  std::map<std::tuple<int, std::string, int, bool>, std::vector<RankLayers>> divided;
};

}  // namespace p3d::plan
