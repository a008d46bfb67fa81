// SPDX-License-Identifier: Apache-2.0
#pragma once
// One pipeline stage on one rank: its layers, what is special about the first and the last stage (embedding; final
// norm, head, loss and multi-token prediction), and its activation slots. It is handed its weights when it runs
// (weights.hpp). The stage knows nothing of schedules or of other stages.

#include <p3d/model/block.hpp>
#include <p3d/model/embedding.hpp>
#include <p3d/model/head.hpp>
#include <p3d/model/mtp.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/model/workspace.hpp>

#include <p3d/device/arena.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/layout/stages.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace p3d::model {

/// The samples of a microbatch and their rows.
using TokenRows = kernels::TokenRows;

/// Memory of a slot in one piece.
struct StageRegion {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// The layers of one stage and the memory of the microbatches in flight.
template <class P>
class Stage {
public:
  using S = typename P::Storage;
  /// Takes all activations from `arena`: layout::stage_bytes(config, stages, stage, sets). `scratch` has the loss's
  /// buffers where the stage is the last, and room for what the stage discards; it, `config` and `stages` must outlive
  /// the stage. Only the order of `params` is used.
  Stage(config::Config const& config, layout::StageMap const& stages, int stage, layout::StageActivations const& sets,
        layout::StageParams const& params, parallel::TensorParallel& tp, device::Arena& arena, StageScratch<P> scratch);

  /// The memory of a slot that is offloaded between F and the backward (schedule/offload.hpp), one piece of
  /// layout::offloaded_bytes: what F saved, or, with `gradients`, after the input part, all but the buffers of narrow
  /// messages.
  StageRegion offloaded(int slot, bool gradients) const;
  /// The samples of the microbatch that comes next to a slot have `length` tokens, at most model.seq_len; 0: that many.
  /// Call it before anything of the microbatch comes: the views of the slot change. Not where activations are
  /// offloaded.
  void shape(int slot, std::int64_t length);
  /// The length of samples for which shape() has made the slot.
  std::int64_t length(int slot) const { return slots_[at(slot)].length; }
  TokenRows rows(int slot) const { return slots_[at(slot)].rows; }
  /// Says that an offloaded region was copied back into the slot: of a microbatch of these samples.
  void resume(int slot, TokenRows rows, bool gradients);

  int index() const { return stage_; }
  bool is_first() const { return first_; }
  bool is_last() const { return last_; }

  /// Buffers that messages fill and carry, [n, hidden] each: the rank's rows (BlockSizes).
  View2<S> input(int slot) const { return slots_[at(slot)].x.front(); }
  View2<S> output(int slot) const { return slots_[at(slot)].x.back(); }
  /// One buffer: it holds the gradient of the output before backward and that of the input after it.
  View2<S> gradient(int slot) const { return slots_[at(slot)].gradient; }

  /// Takes the views of the neighbouring stage on this rank, which keeps its slot as long: its output becomes this
  /// stage's input, and the gradient of its input that of this stage's output. Nothing is copied, but the gradient
  /// where this stage's own buffer is a message's or the embedding's.
  void take_input(int slot, View2<S> output_of_previous) { slots_[at(slot)].x.front() = output_of_previous; }
  void take_gradient(int slot, View2<S> gradient_of_next);
  /// True without layers: the output is the input.
  bool hands_on() const { return blocks_.empty(); }
  /// The last stage's result, [n, hidden], where the vocabulary is divided over the pipeline (vocabulary.hpp).
  /// take_head_gradient() brings the gradient of it, with which backward, or its input part, begins; it is valid until
  /// that ends. The first stage begins with input() filled by E, and ends with gradient().
  View2<S> head_input(int slot) const { return slots_[at(slot)].final_norm_y; }
  void take_head_gradient(int slot, View2<S const> d) { slots_[at(slot)].head_gradient = d; }
  /// Parameters [first, last) are the stage's own; the others are the rank's part of the vocabulary.
  std::size_t first_own_param() const { return first_own_; }
  std::size_t end_of_own_params() const { return end_of_own_; }
  std::size_t num_params() const { return num_params_; }

  /// False: gradient() is the next stage's.
  bool has_gradient() const { return owns_gradient_; }

  /// The kinds of messages of a slot: a gradient is that of the output, received, or that of the input, sent. Where
  /// they travel in fewer bits than they have (precision.pipeline), each kind has a buffer.
  enum class Message { input, output, gradient };
  bool narrow_messages() const { return narrow_messages_; }
  View2<device::bfloat16> narrow(int slot, Message message) const;

  /// Numbers for each row of a microbatch, and `documents`.
  struct Tokens {
    std::span<int const> inputs;     ///< read by the first stage
    std::span<int const> targets;    ///< predicted by the last stage
    std::span<int const> positions;  ///< given where cp divides samples, or documents begin anew
    std::span<int const> documents;  ///< with data.pack TokenRows::documents, of whole samples
    /// Targets of the blocks of multi-token prediction, of one block behind those of another; empty: the blocks do not
    /// run.
    std::span<int const> mtp_targets{};
  };
  /// Says which tokens are in a slot.
  void load(int slot, TokenRows rows, Tokens const& tokens);

  /// Runs the stage on a slot. The last stage adds the sum over this microbatch's tokens of the loss to
  /// Workspace::loss_sum.
  void forward(StageWeights<P> const& w, int slot, bool training);

  /// Called when the gradients of parameters [first, last) (indices into StageParams::items) are complete for a
  /// microbatch.
  using Ready = std::function<void(std::size_t first, std::size_t last)>;
  /// Gradients of the weights add up; gradient(slot) turns from that of the output into that of the input. `loss_scale`
  /// is d(loss) / d(sum of token losses) = 1 / (tokens in the global batch).
  void backward(StageWeights<P> const& w, int slot, double loss_scale, Ready const& ready);

  /// RoutedExperts::take_counts of each of its layers and of the blocks of multi-token prediction behind them; empty: a
  /// layer without experts.
  std::vector<std::vector<std::int64_t>> take_expert_counts();

  /// Backward in two parts, so that a schedule can hand the gradient on first and add up the weights' while it would
  /// wait. The weight part of a slot follows its input part at any later time. Without recomputation no part needs
  /// memory beyond the slot's: TransformerBlock::backward_input says where the gradients lie between the two. What
  /// forward discarded the input part remakes in a set of its own, which the weight part gives back. On the last stage
  /// the logits hold their own gradient, and gradients of multi-token prediction come with the input part; on the first
  /// one the embedding belongs to the weight part, which reads gradient(slot). The input part overwrites output(slot):
  /// no message may read it any more.
  void backward_input(StageWeights<P> const& w, int slot, double loss_scale);
  void backward_weight(StageWeights<P> const& w, int slot, Ready const& ready);

private:
  struct ActivationSlot {
    /// x[0] the stage's input, x[l + 1] the output of its layer l; empty: not kept whole.
    std::vector<View2<S>> x;
    std::vector<View1<S>> shares;             ///< this rank's part of x[l] where it is divided over tp
    std::vector<BlockActivations<P>> blocks;  ///< of the stage's layers, then of those of `mtp`
    std::vector<MtpActivations<P>> mtp;
    /// The buffers of the stage itself; input and input_share are those of the last layer that was taken.
    P3D_BUFFER_VIEWS(P3D_STAGE_BUFFERS)
    NormActivations<P> final_norm() const { return {final_norm_y, final_norm_mean, final_norm_scale}; }
    View2<S const> head_gradient;  ///< see take_head_gradient()
    bool predicts = false;         ///< the blocks of `mtp` have targets
    TokenRows rows;
    std::int64_t length = 0;                        ///< tokens of a sample
    int rebuilt = -1;                               ///< its set in rebuilt_, between the parts of a split backward
    std::size_t begin = 0, saved_end = 0, end = 0;  ///< in the arena: of the regions of offloaded()
  };
  /// A set of buffers in which the input part of a split backward remakes activations. Views that the slot has are
  /// empty.
  struct RebuiltSet {
    std::vector<View2<S>> x;
    std::vector<BlockActivations<P>> blocks;
    std::int64_t length = 0;
  };
  ActivationSlot take_slot(layout::StageRecompute const& recompute, RankPlace rank, device::Arena& arena) const;
  RebuiltSet take_rebuilt(RankPlace rank, device::Arena& arena) const;
  /// Takes a buffer of a layer.
  void take_of_layer(layout::TakenBuffer const& taken, BlockSizes const& of_all, device::Arena& arena,
                     std::vector<BlockActivations<P>>& blocks) const;
  std::size_t at(int slot) const { return static_cast<std::size_t>(slot); }
  /// The recomputation of a slot.
  layout::StageRecompute const& recompute(int slot) const { return slot < recompute_.slots_kept ? none_ : recompute_; }
  /// The views that an action works on, by layer.
  struct Opened {
    Workspace<P>* scratch;
    std::vector<View2<S>> x;
    std::vector<BlockActivations<P>> saved;
  };
  /// Sets the views to the slot's, and where it has none to those of `rebuilt` (if any) or of the scratch. With
  /// `running` the inputs that the slot does not have share one place.
  void open(Opened& opened, int slot, RebuiltSet const* rebuilt, bool running);
  /// A call of layer l of the stage.
  LayerCall<P> layer_call(StageWeights<P> const& w, ActivationSlot const& slot, Opened& opened, int l, RoutePass kind);
  /// Makes again what layers [begin, end), a group, discarded, in the places that open() has set.
  void remake(StageWeights<P> const& w, int slot, int begin, int end);
  void embed(StageWeights<P> const& w, ActivationSlot& slot, bool training);
  void embed_backward(StageWeights<P> const& w, ActivationSlot& slot, View2<S> d);
  /// From the head to the gradient of the layers' output; `weights`: the head's weight gradient adds up.
  void head_backward(StageWeights<P> const& w, ActivationSlot& slot, double loss_scale, bool weights);
  static HeadUse<P> head_of(ActivationSlot const& s) { return {s.final_norm_y, s.targets, s.logits, s.lse}; }
  static HeadUse<P> head_of(MtpActivations<P> const& a) { return {a.final_norm_y, a.targets, a.logits, a.lse}; }
  /// The gradient of the head's input, which lies in scratch.
  View2<S> head_input_gradient(StageWeights<P> const& w, HeadUse<P> const& use, double scale, bool weights);
  /// Runs the blocks of multi-token prediction.
  void predict(StageWeights<P> const& w, ActivationSlot& slot);
  /// Returns the gradient of the model's h^0 that the blocks leave; empty without any.
  View2<S> predict_backward(StageWeights<P> const& w, ActivationSlot& slot);
  /// A call of the layer of block k, and the embedding that the block reads.
  LayerCall<P> mtp_call(StageWeights<P> const& w, ActivationSlot& slot, Workspace<P>& scratch, std::size_t k);
  SharedEmbedding<P> mtp_embedding(StageWeights<P> const& w, ActivationSlot const& slot, std::size_t k) const;

  RankPlace place(std::int64_t length) const { return {forward_.scratch->rank.tp, forward_.scratch->rank.cp, length}; }
  /// The slot of a microbatch, and `scratch` made ready for it.
  ActivationSlot& begin_action(int slot, Workspace<P>& scratch);
  /// Takes a free set for what the input part remakes.
  RebuiltSet& take_free_set(ActivationSlot& slot, int number);

  config::Config const* config_;
  layout::StageMap const* stages_;
  int stage_;
  bool first_, last_;
  bool has_embedding_, has_head_;  ///< as StageMap says
  bool owns_gradient_;             ///< false: the buffer is the next stage's
  bool narrow_messages_;
  bool offloads_;
  /// No view of a slot changes places with one of the scratch: a slot that moves, or is taken anew, is one piece.
  bool one_piece_;
  std::byte* arena_begin_;
  parallel::TensorParallel* tp_;
  std::vector<TransformerBlock<P>> blocks_;
  std::vector<MtpBlock<P>> mtp_;  ///< blocks of multi-token prediction, which the last stage has
  layout::StageRecompute recompute_, none_;
  std::vector<ActivationSlot> slots_;
  std::vector<RebuiltSet> rebuilt_;
  std::vector<MemoryPiece> slot_memory_, rebuilt_memory_;
  std::vector<int> free_rebuilt_;
  Opened forward_, backward_;
  Embedding<P> embedding_;
  Head<P> head_;
  NormLayer<P> final_norm_;
  /// The numbers that `ready` is told: parameters [layer_begin_[l], layer_begin_[l + 1]) belong to local layer l;
  /// before the first: embedding, after the last: head.
  std::vector<std::size_t> layer_begin_;
  std::size_t num_params_ = 0, first_own_ = 0, end_of_own_ = 0;  ///< see first_own_param()
};

}  // namespace p3d::model
