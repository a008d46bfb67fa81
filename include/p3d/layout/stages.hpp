// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which layers a pipeline stage holds, and which pipeline rank a stage lives on.

#include <p3d/layout/axes.hpp>

#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::layout {

/// Layers of the model by pipeline stage. Stage 0 also holds the embedding, the last stage the final norm, the head and
/// the loss. A pipeline rank may hold several stages (chunks), in any placement.
class StageMap {
public:
  /// `layers_per_stage` sums to the model's layers, each at least 0; stage s lives on pipeline rank s % num_ranks.
  StageMap(std::vector<int> const& layers_per_stage, int num_pipeline_ranks);
  /// Stage s lives on pipeline rank stage_rank[s]; every rank holds at least one stage.
  StageMap(std::vector<int> layers_per_stage, std::vector<int> stage_rank, int num_pipeline_ranks);
  int num_stages() const { return static_cast<int>(layers_.size()); }
  int num_layers() const { return static_cast<int>(begin_.back()); }
  /// Layers [begin, end) of a stage.
  Range layers(int stage) const;
  int num_layers(int stage) const { return layers_[static_cast<std::size_t>(stage)]; }
  /// The first layer of the stage that refine() cut this one from; uncut, of itself.
  std::int64_t uncut_begin(int stage) const { return uncut_begin_[static_cast<std::size_t>(stage)]; }
  /// The pipeline coordinate that holds a stage.
  int pipeline_rank(int stage) const { return stage_rank_[static_cast<std::size_t>(stage)]; }
  int num_pipeline_ranks() const { return num_ranks_; }
  /// Stages of a pipeline coordinate, in order.
  std::vector<int> const& stages_of(int pipeline_rank) const;
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage + 1 == num_stages(); }
  /// One stage was cut into these: the last one uses the first one's tied embedding. Else it has a replica of its own.
  bool shares_tied() const { return shares_tied_; }

private:
  friend StageMap refine(StageMap const& stages, std::vector<int> const& parts);
  std::vector<int> layers_;
  std::vector<std::int64_t> begin_;        ///< first layer of each stage, and the end of the last
  std::vector<std::int64_t> uncut_begin_;  ///< see uncut_begin()
  std::vector<int> stage_rank_;
  std::vector<std::vector<int>> stages_of_;  ///< by pipeline rank
  int num_ranks_;
  bool shares_tied_ = false;
  friend StageMap refine(StageMap const& stages, std::vector<int> const& parts);
};

/// Each stage s cut into parts[s] stages on its rank (schedule::refine), its layers dealt to them as evenly as
/// possible.
StageMap refine(StageMap const& stages, std::vector<int> const& parts);

/// n layers on p stages as evenly as possible, the larger ones first: 30 on 4 -> 8, 8, 7, 7.
std::vector<int> even_layers(int layers, int stages);

/// Layers needed by a stage: one, but none where the embedding or the head gives it something to do.
int least_layers(int stage, int stages);

/// Contiguous division that minimises the largest cost of a pipeline rank when a layer costs `layer_cost`, the
/// embedding `first_cost` (on the first stage) and the head `last_cost` (on the last), stage s being on rank
/// stage_rank[s]; each rank deals its layers so that its costliest stage is as cheap as can be. Every stage gets at
/// least least_layers.
std::vector<int> balanced_layers(int layers, std::vector<int> const& stage_rank, double layer_cost, double first_cost,
                                 double last_cost);

/// The stage map of a checked configuration (pipeline.layers_per_stage: "even", "cost", or a list).
StageMap make_stage_map(config::Config const& config);
/// The same for a schedule's stages: as many as `stage_rank` has, stage s on pipeline rank stage_rank[s]. Throws
/// base::Error (bad_input) when there are not enough layers, or the list has another number of entries.
StageMap make_stage_map(config::Config const& config, std::vector<int> const& stage_rank);

}  // namespace p3d::layout
