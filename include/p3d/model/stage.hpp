// SPDX-License-Identifier: Apache-2.0
#pragma once
// One pipeline stage on one rank: its layers, what is special about the first and the last stage (embedding; final
// norm, head and loss), and its activation slots. It is handed its weights when it runs (weights.hpp). The stage knows
// nothing of schedules or of other stages.

#include <p3d/model/block.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/vocab.hpp>

#include <p3d/device/arena.hpp>
#include <p3d/layout/stages.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace p3d::model {

/// Which samples a microbatch holds.
using TokenRows = kernels::TokenRows;

/// Scratch that all stages of a rank share, as only one of them runs at a time.
template <class P>
struct Workspace {
  /// Takes exactly bytes(config, with_loss) from `arena`. `with_loss`: the rank holds the last stage.
  Workspace(config::Config const& config, bool with_loss, device::Arena& arena);
  static std::size_t bytes(config::Config const& config, bool with_loss);

  BlockScratch<P> block;
  View2<typename P::Storage> dfinal;      ///< [tokens, hidden]
  View1<typename P::Accumulate> row_max;  ///< [tokens]
  View2<typename P::Accumulate> sums;     ///< [2, tokens]

private:
  Workspace() = default;
  template <class Source>
  void take(config::Config const& config, bool with_loss, Source& source);
};

template <class P>
class Stage {
public:
  using S = typename P::Storage;
  /// Takes all activations from `arena`: exactly bytes(config, stages, stage, num_slots). `workspace` has the loss's
  /// buffers where the stage is the last; it must outlive the stage. Of `params` only the order is used.
  Stage(config::Config const& config, layout::StageMap const& stages, int stage, layout::StageParams const& params,
        parallel::TensorParallel& tp, device::Arena& arena, Workspace<P>& workspace, int num_slots);

  /// What the constructor will take from the arena, in bytes.
  static std::size_t bytes(config::Config const& config, layout::StageMap const& stages, int stage, int num_slots);

  int index() const { return stage_; }
  bool is_first() const { return first_; }
  bool is_last() const { return last_; }

  /// Buffers that messages fill and carry, [tokens, hidden] each.
  View2<S> input(int slot) const { return slots_[at(slot)].x.front(); }
  View2<S> output(int slot) const { return slots_[at(slot)].x.back(); }
  /// One buffer: it holds the gradient of the output before backward and that of the input after it.
  View2<S> gradient(int slot) const { return slots_[at(slot)].d; }

  /// Messages of a slot, where they travel in fewer bits than they have (precision.pipeline): one buffer for each kind.
  enum class Message { input, output, output_gradient, input_gradient };
  bool narrow_messages() const { return narrow_messages_; }
  View2<device::bfloat16> narrow(int slot, Message message) const {
    return slots_[at(slot)].narrow[static_cast<std::size_t>(message)];
  }

  /// Says which samples are in a slot. Tokens are needed on the first stage, targets on the last; pass empty spans
  /// elsewhere.
  void load(int slot, TokenRows rows, std::span<int const> tokens, std::span<int const> targets);

  /// Runs the stage on a slot. On the last stage returns the sum over this microbatch's tokens of the loss, else 0.
  double forward(StageWeights<P> const& w, int slot, bool training);

  /// Called when the gradients of parameters [first, last) (indices into StageParams::items) are complete for a
  /// microbatch.
  using Ready = std::function<void(std::size_t first, std::size_t last)>;
  /// Gradients of the weights add up; gradient(slot) turns from that of the output into that of the input. `loss_scale`
  /// is d(loss) / d(sum of token losses) = 1 / (tokens in the global batch).
  void backward(StageWeights<P> const& w, int slot, double loss_scale, Ready const& ready);

  /// The same in two parts, so that a schedule can hand the gradient on first and add up the weights' while it would
  /// wait. The weight part of a slot follows its input part at any later time. No part needs memory beyond the slot's:
  /// TransformerBlock::backward_input says where the gradients lie between the two. On the last stage the logits hold
  /// their own gradient; on the first one the embedding belongs to the weight part, which reads gradient(slot). The
  /// input part overwrites output(slot): no message may read it any more.
  void backward_input(StageWeights<P> const& w, int slot, double loss_scale);
  void backward_weight(StageWeights<P> const& w, int slot, Ready const& ready);

  /// After forward on the last stage: the logits of one token of a slot, local vocabulary only. [valid local
  /// vocabulary]
  std::vector<double> logits(int slot, std::int64_t row) const;
  parallel::VocabShard const& vocab() const { return vocab_; }

private:
  struct ActivationSlot {
    std::vector<View2<S>> x;  ///< x[0] the stage's input, x[l + 1] the output of its layer l
    std::vector<BlockActivations<P>> blocks;
    View2<S> d;
    std::array<View2<device::bfloat16>, 4> narrow;  ///< by Message
    View1<int> tokens, targets;
    NormActivations<P> final_norm;
    View2<S> logits;  ///< turned into their gradient by backward
    View1<typename P::Accumulate> lse;
    TokenRows rows;
  };
  template <class Source>
  static void take_slots(config::Config const& config, layout::StageMap const& stages, int stage, int num_slots,
                         Source& source, std::vector<ActivationSlot>& slots);
  std::size_t at(int slot) const { return static_cast<std::size_t>(slot); }
  void embed(StageWeights<P> const& w, ActivationSlot& slot, bool training);
  void embed_backward(StageWeights<P> const& w, ActivationSlot& slot, View2<S> d);
  void head_backward(StageWeights<P> const& w, ActivationSlot& slot, double loss_scale, bool weights);
  void head_backward_weight(StageWeights<P> const& w, ActivationSlot& slot);

  int stage_;
  bool first_, last_;
  bool narrow_messages_;
  parallel::TensorParallel* tp_;
  std::vector<TransformerBlock<P>> blocks_;
  std::vector<ActivationSlot> slots_;
  Workspace<P>* shared_;
  parallel::VocabShard vocab_;
  NormLayer<P> final_norm_;
  kernels::Dropout embed_dropout_;
  /// For `ready`: parameters [layer_begin_[l], layer_begin_[l + 1]) belong to local layer l; before the first:
  /// embedding, after the last: head.
  std::vector<std::size_t> layer_begin_;
  std::size_t num_params_ = 0;
};

}  // namespace p3d::model
