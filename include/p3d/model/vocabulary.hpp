// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's part of the embedding and of the output layer where the vocabulary is divided over the pipeline
// (pipeline.vocab_parallel; Yeung et al., arXiv 2411.05288). schedule/vocabulary.hpp says what the ranks exchange, and
// when; whoever runs the schedule carries it between the buffers of this class.
//
// Rank (p, t) of pp x tp ranks holds block p tp + t of the vocabulary, padded to equal blocks. Tied embeddings are one
// matrix on each rank.

#include <p3d/config/config.hpp>
#include <p3d/model/embedding.hpp>
#include <p3d/model/head.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/model/workspace.hpp>
#include <p3d/device/arena.hpp>

#include <array>
#include <cstddef>
#include <functional>

namespace p3d::model {

/// The part of one rank. N are the tokens of a microbatch on this rank, n its rows of them (BlockSizes).
template <class P>
class VocabularyPart {
public:
  using S = typename P::Storage;
  using A = typename P::Accumulate;

  /// Takes layout::vocabulary_bytes from `arena`. The other arguments must outlive this object. `pipeline_rank` is a
  /// rank of config.parallel.pp.
  VocabularyPart(config::Config const& config, int pipeline_rank, parallel::TensorParallel& tp, device::Arena& arena,
                 Workspace<P>& scratch);

  // Buffers of the exchanges, by slot.
  View2<S> sum(int slot) { return embeds_[at(slot)].rows; }                ///< [n, hidden] of E, to be added up
  View2<S> output(int slot) { return heads_[at(slot)].input; }             ///< [n, hidden] of the last stage
  View1<A> parts(int slot) { return heads_[at(slot)].parts; }              ///< [ranks part_size()] of S, to be gathered
  View2<S> input_gradient(int slot) { return heads_[at(slot)].gradient; }  ///< [n, hidden] of T, to be added up
  View2<S> gradient(int slot) { return gradients_[at(slot)].rows; }        ///< [n, hidden] of the first stage's input
  std::int64_t part_size() const { return 3 * tokens_; }                   ///< numbers of `parts` that each rank brings
  int ranks() const { return ranks_; }                                     ///< number of ranks of pp x tp
  int number() const { return number_; }                                   ///< this rank's place in parts()

  // Numbers of a microbatch, [N] each: the tokens of E, the targets of S and T, the tokens of G.
  void load_embedding(int slot, std::span<int const> tokens) { copy(tokens, embeds_[at(slot)].tokens); }
  void load_targets(int slot, std::span<int const> targets) { copy(targets, heads_[at(slot)].targets); }
  void load_gradient(int slot, std::span<int const> tokens) { copy(tokens, gradients_[at(slot)].tokens); }

  /// E: looks up the rank's rows of the embedding, zeros for the tokens of others, and sums them over tp.
  void embed_forward(StageWeights<P> const& w, int slot);
  /// S: computes the logits of the rank's block, and as the rank's part for each token their maximum, the sum of their
  /// exponentials from it and the target's logit.
  void head_forward(StageWeights<P> const& w, int slot);
  /// T, once the parts are gathered: adds the sum of the tokens' losses to Workspace::loss_sum where it `counts` (it is
  /// the same on every rank). Then, with `training`, the gradients: of the logits, of the input (summed over tp;
  /// `shared` is called when it is there) and of the rows of the weight, which adds up. `loss_scale` as in
  /// Stage::backward.
  void head_backward(StageWeights<P> const& w, int slot, bool counts, bool training, double loss_scale,
                     std::function<void()> const& shared);
  /// G: the gradient of the rank's rows of the embedding, which adds up.
  void embed_backward(StageWeights<P> const& w, int slot);

private:
  /// The buffers of one microbatch. E and G use tokens [N] and rows [n, hidden]; S and T use targets and lse [N], input
  /// and gradient [n, hidden], logits [N, the rank's block] and parts [ranks part_size()].
  struct Slot {
    P3D_BUFFER_VIEWS(P3D_VOCABULARY_BUFFERS)
  };
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  void copy(std::span<int const> from, View1<int> to) const;

  static HeadUse<P> use_of(Slot const& s) { return {s.input, s.targets, s.logits, s.lse}; }

  std::array<Slot, 2> embeds_, gradients_, heads_;
  std::int64_t tokens_ = 0;
  int ranks_ = 1, number_ = 0;
  Embedding<P> embedding_;
  Head<P> head_;
  parallel::TensorParallel* tp_ = nullptr;
  Workspace<P>* scratch_ = nullptr;
};

}  // namespace p3d::model
