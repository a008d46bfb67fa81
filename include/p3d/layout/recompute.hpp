// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation recomputation (Chen et al., arXiv 1604.06174; Korthikanti et al., arXiv 2205.05198): what the forward pass
// of a stage discards, layer by layer, so that its backward pass has to remake it. Pure integers.

#include <p3d/layout/stages.hpp>

#include <vector>

namespace p3d::config {
struct Memory;
}

namespace p3d::layout {

/// What is discarded of one layer.
struct LayerRecompute {
  bool norm = false;        ///< the outputs of both norms; their statistics stay
  bool activation = false;  ///< the output of the activation function
  bool attention = false;   ///< the output of attention and its log-sum-exp
  bool full = false;        ///< everything but the layer's input; the three above are then false
  bool any() const { return norm || activation || attention || full; }
  bool operator==(LayerRecompute const&) const = default;
};

/// How a slot keeps the input of a layer.
enum class KeptInput {
  whole,   ///< on every rank of tp
  shared,  ///< each rank of tp a part of it
  none     ///< it is remade from an earlier layer's
};

/// What a stage recomputes.
struct StageRecompute {
  std::vector<LayerRecompute> layers;  ///< of the stage, in order
  /// So many full layers in a row keep one input and are remade together. Above 1, the full layers are the first ones.
  int group = 1;
  int slots_kept = 0;          ///< slots below this number keep everything
  bool keeps_sums = false;     ///< of full layers: the attention branch's sum over tp, x_mid, stays
  bool shares_inputs = false;  ///< inputs of full layers are divided over tp; never the stage's own input

  bool any() const;
  int num_layers() const { return static_cast<int>(layers.size()); }
  LayerRecompute const& layer(int l) const { return layers[static_cast<std::size_t>(l)]; }
  /// The layers [begin, end) that are remade together with layer l: of a full layer its group, else itself alone.
  int group_begin(int l) const;
  int group_end(int l) const;
  /// Of the largest group of full layers; 0: none is full.
  int largest_group() const;
  /// How the input of layer l is kept; l = num_layers(): the stage's output, which is whole.
  KeptInput input(int l) const;
  bool operator==(StageRecompute const&) const = default;
};

/// What [memory] says for a stage. recompute = "auto" is not for here: it depends on the budget.
///  * a list: these operations of all layers
///  * "full": of a stage every layer whose place in it, from 0, is a multiple of recompute_every, and is below
///    recompute_layers (0: any); in groups of recompute_group from the first layer on. The last may be smaller.
/// Where layout::refine() has cut stages, every and layers count within the uncut stage, and a group ends with its
/// part.
StageRecompute stage_recompute(config::Memory const& memory, StageMap const& stages, int stage);

/// The layers of a stage, all kept.
StageRecompute no_recompute(StageMap const& stages, int stage);

/// The sets of buffers that a stage takes, and what its layers recompute.
struct StageActivations {
  int slots = 1;    ///< activation slots
  int rebuilt = 0;  ///< sets of remade activations that live from I to W (schedule::split_backwards_at_a_time)
  StageRecompute recompute;
  /// Microbatches that wait elsewhere at a time, and whether with their gradients (schedule::offloaded_activations).
  /// Where there are some, slots are alike and each has a set of its own of remade activations, if any.
  int offload_places = 0;
  bool offload_gradients = false;
};

}  // namespace p3d::layout
