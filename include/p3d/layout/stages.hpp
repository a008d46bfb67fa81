// SPDX-License-Identifier: Apache-2.0
#pragma once
// The division of the model's layers into pipeline stages, and the pipeline rank on which each stage lives. Example: 30
// layers on 4 stages give 8, 8, 7 and 7 layers.

#include <p3d/layout/axes.hpp>

#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::layout {

/// The layers of each pipeline stage, and who owns the vocabulary. Stage 0 also has the embedding, the last stage the
/// final norm, the head and the loss, unless the vocabulary is divided over the pipeline: then each pipeline rank owns
/// a part of embedding and head, with actions of its own (E, S, T, G), and stages have neither. A pipeline rank may
/// hold several stages (chunks), in any placement.
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
  /// The first layer of the stage from which refine() cut this one; for an uncut stage its own first layer.
  std::int64_t uncut_begin(int stage) const { return uncut_begin_[static_cast<std::size_t>(stage)]; }
  /// The pipeline coordinate of the rank that holds a stage.
  int pipeline_rank(int stage) const { return stage_rank_[static_cast<std::size_t>(stage)]; }
  int num_pipeline_ranks() const { return num_ranks_; }
  /// The stages of a pipeline coordinate, in order.
  std::vector<int> const& stages_of(int pipeline_rank) const;
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage + 1 == num_stages(); }
  /// True when the embedding and the head belong to the first and to the last stage; false when each pipeline rank owns
  /// a part of both.
  bool stages_own_vocabulary() const { return !vocabulary_divided_; }
  /// Returns these stages with a part of the vocabulary on each pipeline rank where it is `divided`.
  StageMap with_vocabulary(bool divided) const;
  /// True when a stage looks up tokens, and has the embedding's gradient.
  bool has_embedding(int stage) const { return is_first(stage) && stages_own_vocabulary(); }
  /// True when a stage computes logits and losses. (The final norm is the last stage's in any case.)
  bool has_head(int stage) const { return is_last(stage) && stages_own_vocabulary(); }
  /// True when a pipeline rank computes losses, for a stage or for its part of the vocabulary.
  bool rank_has_head(int pipeline_rank) const {
    return !stages_own_vocabulary() || this->pipeline_rank(num_stages() - 1) == pipeline_rank;
  }
  /// True when these stages were cut from one: the last one then uses the first one's tied embedding. Otherwise it has
  /// a replica of its own.
  bool shares_tied() const { return shares_tied_; }

private:
  friend StageMap refine(StageMap const& stages, std::vector<int> const& parts);
  std::vector<int> layers_;
  std::vector<std::int64_t> begin_;        ///< first layer of each stage, and the end of the last
  std::vector<std::int64_t> uncut_begin_;  ///< see uncut_begin()
  std::vector<int> stage_rank_;
  std::vector<std::vector<int>> stages_of_;  ///< one list for each pipeline rank
  int num_ranks_;
  bool shares_tied_ = false, vocabulary_divided_ = false;
};

/// Cuts each stage s into parts[s] stages on the same rank (schedule::refine); its layers are distributed over them as
/// evenly as possible.
StageMap refine(StageMap const& stages, std::vector<int> const& parts);

/// Distributes layers over stages as evenly as possible, the larger numbers first: 30 on 4 -> 8, 8, 7, 7.
std::vector<int> even_layers(int layers, int stages);

/// The least number of layers of a stage: one, but none where the embedding or the head gives the stage something to
/// do.
int least_layers(int stage, int stages);

/// Divides layers so that the largest cost of a pipeline rank is least. A layer costs `layer_cost`, the embedding (on
/// the first stage) `first_cost` and the head (on the last) `last_cost`; stage s is on rank stage_rank[s]. Each rank
/// distributes its layers so that its costliest stage is as cheap as can be. Every stage gets at least least_layers.
std::vector<int> balanced_layers(int layers, std::vector<int> const& stage_rank, double layer_cost, double first_cost,
                                 double last_cost);

/// The stage map of a checked configuration (pipeline.layers_per_stage: "even", "cost", or a list).
StageMap make_stage_map(config::Config const& config);
/// The stage map for the stages of a schedule: as many as `stage_rank` has, stage s on pipeline rank stage_rank[s].
/// Throws base::Error (bad_input) when there are not enough layers, or the list has another number of entries.
StageMap make_stage_map(config::Config const& config, std::vector<int> const& stage_rank);

}  // namespace p3d::layout
