// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation recomputation (Chen et al., arXiv 1604.06174; Korthikanti et al., arXiv 2205.05198): the activations that
// a stage discards after its forward pass, layer by layer, and recomputes in its backward pass. Plain integers.

#include <p3d/layout/stages.hpp>

#include <vector>

namespace p3d::config {
struct Memory;
}

namespace p3d::layout {

/// The activations of one layer that are discarded.
struct LayerRecompute {
  bool norm = false;        ///< the outputs of both norms; their statistics stay
  bool activation = false;  ///< the output of the activation function
  bool attention = false;   ///< the output of attention and its log-sum-exp
  bool full = false;        ///< everything but the layer's input; the three above are then false
  bool any() const { return norm || activation || attention || full; }
  bool operator==(LayerRecompute const&) const = default;
};

/// How an activation slot keeps the input of a layer.
enum class KeptInput {
  whole,   ///< whole on every rank of tp
  shared,  ///< divided over the ranks of tp
  none     ///< not kept: it is recomputed from an earlier layer's input
};

/// The recomputation of one stage.
struct StageRecompute {
  std::vector<LayerRecompute> layers;  ///< one for each layer of the stage, in order
  /// The number of full layers in a row that keep one input and are recomputed one after the other. Above 1, the full
  /// layers are the first ones.
  int group = 1;
  int slots_kept = 0;          ///< slots below this number keep everything
  bool keeps_sums = false;     ///< full layers keep x_mid, the sum over tp behind the attention branch
  bool shares_inputs = false;  ///< inputs of full layers are divided over tp; the stage's own input never is

  bool any() const;
  int num_layers() const { return static_cast<int>(layers.size()); }
  LayerRecompute const& layer(int l) const { return layers[static_cast<std::size_t>(l)]; }
  /// The first layer of the group that is recomputed with layer l: a full layer's group, otherwise l alone.
  int group_begin(int l) const;
  /// The end of that group.
  int group_end(int l) const;
  /// The number of layers of the largest group of full layers; 0: no layer is full.
  int largest_group() const;
  /// True when full layer l is recomputed to the end: the layer behind it needs its output, or norms behind its
  /// sub-layers (model.norm_placement) need their branches.
  bool remakes_branches(int l, bool norms_after) const { return group_end(l) != l + 1 || (norms_after && !keeps_sums); }
  /// How the input of layer l is kept; l = num_layers() is the stage's output, which is whole.
  KeptInput input(int l) const;
  bool operator==(StageRecompute const&) const = default;
};

/// The recomputation that [memory] asks of a stage. recompute = "auto" must have been resolved before: it depends on
/// the budget.
/// * a list: these operations of all layers
/// * "full": every layer of the stage whose place in it, from 0, is a multiple of recompute_every and below
/// recompute_layers (0: any); in groups of recompute_group from the first layer on. The last group may be smaller.
/// Where layout::refine() has cut stages, recompute_every and recompute_layers count within the uncut stage, and a
/// group ends with its part.
StageRecompute stage_recompute(config::Memory const& memory, StageMap const& stages, int stage);

/// The recomputation of a stage that keeps everything.
StageRecompute no_recompute(StageMap const& stages, int stage);

/// The sets of buffers that a stage needs, and what its layers recompute.
struct StageActivations {
  int slots = 1;    ///< activation slots
  int rebuilt = 0;  ///< sets of recomputed activations that live from I to W (schedule::split_backwards_at_a_time)
  StageRecompute recompute;
  /// The number of microbatches that are offloaded at a time (schedule::offloaded_activations). Where there are some,
  /// all slots are alike, and each has a set of its own of recomputed activations, if any.
  int offload_places = 0;
  /// True when offloaded microbatches include their gradients.
  bool offload_gradients = false;
};

}  // namespace p3d::layout
