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
#include <cstdint>
#include <functional>
#include <map>
#include <span>

namespace p3d::model {

/// The tokens of a microbatch on a rank, N, and the rank's rows of them, n (BlockSizes). `length`: tokens of a sample.
struct PartSize {
  std::int64_t length = 0, tokens = 0, rows = 0;
};

/// The part of one rank. Its buffers hold samples of model.seq_len; a microbatch of shorter ones takes their begins.
template <class P>
class VocabularyPart {
public:
  using S = typename P::Storage;
  using A = typename P::Accumulate;

  /// Takes layout::vocabulary_bytes from `arena`. The other arguments must outlive this object. `pipeline_rank` is a
  /// rank of config.parallel.pp.
  VocabularyPart(config::Config const& config, int pipeline_rank, parallel::TensorParallel& tp, device::Arena& arena,
                 Workspace<P>& scratch);

  /// The size of a microbatch whose samples have `length` tokens; 0: model.seq_len.
  PartSize const& size(std::int64_t length);

  // Buffers of the exchanges, by slot, for a microbatch of a size.
  /// [n, hidden] of E, to be added up.
  View2<S> sum(int slot, PartSize const& m) { return first_rows(embeds_[at(slot)].rows, m.rows); }
  /// [n, hidden] of the last stage.
  View2<S> output(int slot, PartSize const& m) { return first_rows(heads_[at(slot)].input, m.rows); }
  /// [ranks part_size()] of S, to be gathered.
  View1<A> parts(int slot, PartSize const& m) { return first(heads_[at(slot)].parts, ranks_ * part_size(m)); }
  /// [n, hidden] of T, to be added up.
  View2<S> input_gradient(int slot, PartSize const& m) { return first_rows(heads_[at(slot)].gradient, m.rows); }
  /// [n, hidden] of the first stage's input.
  View2<S> gradient(int slot, PartSize const& m) { return first_rows(gradients_[at(slot)].rows, m.rows); }
  static std::int64_t part_size(PartSize const& m) { return 3 * m.tokens; }  ///< numbers of `parts` of each rank
  int ranks() const { return ranks_; }                                       ///< number of ranks of pp x tp
  int number() const { return number_; }                                     ///< this rank's place in parts()

  // Numbers of a microbatch, [N] each: the tokens of E, the targets of S and T, the tokens of G.
  void load_embedding(int slot, std::span<int const> tokens) { load(tokens, embeds_[at(slot)], &Slot::tokens); }
  void load_targets(int slot, std::span<int const> targets) { load(targets, heads_[at(slot)], &Slot::targets); }
  void load_gradient(int slot, std::span<int const> tokens) { load(tokens, gradients_[at(slot)], &Slot::tokens); }

  /// E: looks up the rank's rows of the embedding, zeros for the tokens of others, and sums them over tp.
  void embed_forward(StageWeights<P> const& w, int slot, PartSize const& m);
  /// S: computes the logits of the rank's block, and as the rank's part for each token their maximum, the sum of their
  /// exponentials from it and the target's logit.
  void head_forward(StageWeights<P> const& w, int slot, PartSize const& m);
  /// T, once the parts are gathered: adds the sum of the tokens' losses to Workspace::loss_sum where it `counts` (it is
  /// the same on every rank). Then, with `training`, the gradients: of the logits, of the input (summed over tp;
  /// `shared` is called when it is there) and of the rows of the weight, which adds up. `loss_scale` as in
  /// Stage::backward.
  void head_backward(StageWeights<P> const& w, int slot, PartSize const& m, bool counts, bool training,
                     double loss_scale, std::function<void()> const& shared);
  /// G: the gradient of the rank's rows of the embedding, which adds up.
  void embed_backward(StageWeights<P> const& w, int slot, PartSize const& m);

private:
  /// The buffers of one microbatch. E and G use tokens [N] and rows [n, hidden]; S and T use targets and lse [N], input
  /// and gradient [n, hidden], logits [N, the rank's block] and parts [ranks part_size()].
  struct Slot {
    P3D_BUFFER_VIEWS(P3D_VOCABULARY_BUFFERS)
    std::int64_t loaded = 0;  ///< N of the microbatch whose tokens or targets are there
  };
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  template <class T>
  static View1<T> first(View1<T> all, std::int64_t n) {
    return View1<T>(all.data(), n);
  }
  static View2<S> first_rows(View2<S> all, std::int64_t n) { return device::rows(all, 0, n); }
  void load(std::span<int const> from, Slot& slot, View1<int> Slot::*to) const;
  /// The slot of E, S, T or G of a microbatch of this size, with its scratch.
  Slot& begin_action(std::array<Slot, 2>& slots, int slot, PartSize const& m);

  static HeadUse<P> use_of(Slot const& s, PartSize const& m) {
    return {first_rows(s.input, m.rows), first(s.targets, m.tokens), first_rows(s.logits, m.tokens),
            first(s.lse, m.tokens)};
  }

  config::Config const* config_;
  std::array<Slot, 2> embeds_, gradients_, heads_;
  std::map<std::int64_t, PartSize> sizes_;  ///< keyed by the length of samples
  int ranks_ = 1, number_ = 0;
  Embedding<P> embedding_;
  Head<P> head_;
  parallel::TensorParallel* tp_ = nullptr;
  Workspace<P>* scratch_ = nullptr;
};

}  // namespace p3d::model
