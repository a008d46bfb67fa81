// SPDX-License-Identifier: Apache-2.0
#pragma once
// The output layer of one rank: the block of the vocabulary's rows that turns the last stage's result into logits, and
// the loss of these. Stages, generation, multi-token prediction and ranks of a divided vocabulary (vocabulary.hpp) use
// the same object. It holds no weights.
//
// Where the vocabulary is divided over tp alone, the loss takes sums over tp (forward). Where it is divided over the
// pipeline too, each rank first makes its parts of the loss (forward_parts), which somebody gathers, and then the loss
// of all parts (combine).

#include <p3d/model/parameters.hpp>
#include <p3d/model/workspace.hpp>
#include <p3d/parallel/vocab.hpp>

#include <p3d/config/config.hpp>

#include <cstdint>
#include <functional>

namespace p3d::model {

/// The buffers of one use of the head: the model's, or that of a block of multi-token prediction. N are the tokens of
/// the microbatch on this rank, n its rows of them.
template <class P>
struct HeadUse {
  View2<typename P::Storage> input;   ///< [n, hidden]
  View1<int> targets;                 ///< [N]; below 0: not counted
  View2<typename P::Storage> logits;  ///< [N, the rank's block]; backward turns them into their gradient
  View1<typename P::Accumulate> lse;  ///< [N]
};

template <class P>
class Head {
public:
  using S = typename P::Storage;
  using A = typename P::Accumulate;
  /// `tp` must outlive it.
  Head(config::Config const& config, parallel::TensorParallel& tp, int pipeline_rank);

  parallel::VocabShard const& block() const { return block_; }  ///< vocabulary_block()

  /// y = factor x, for the output of the final norm and for the gradient of that (model.logits_scaling); y may be x.
  void scale(View2<S const> x, View2<S> y) const;
  bool scales() const { return factor_ != 1.0; }

  /// out [N, the rank's block] = the logits of `input` [n, hidden], whose rows are gathered in `gathered` [N, hidden]
  /// (parallel::start_gather_rows).
  void logits(Matrix<P> const& weight, View2<S const> input, View2<S> gathered, View2<S> out) const;

  /// total(0) += the sum of the tokens' losses.
  void forward(Matrix<P> const& weight, HeadUse<P> const& use, Workspace<P>& scratch, View1<double> total) const;
  /// The rank's part of each token's loss: maximum, sum of exponentials from it and the target's logit; `part` [3 N].
  void forward_parts(Matrix<P> const& weight, HeadUse<P> const& use, Workspace<P>& scratch, View1<A> part) const;
  /// From `parts` [ranks, 3 N], gathered: lse, and total(0) += the losses unless `total` is empty.
  void combine(int ranks, View1<A const> parts, HeadUse<P> const& use, Workspace<P>& scratch,
               View1<double> total) const;

  /// d [N, hidden] = the gradient of the input: own_rows() of it, summed over tp. `scale` is d(loss) / d(sum of token
  /// losses). With `adds_weight` the weight's gradient adds up, else backward_weight() does that later. `ready` is
  /// called when d is there, if given, and then without tp before the weight's GEMM, for which nobody needs to wait.
  void backward(Matrix<P> const& weight, HeadUse<P> const& use, double scale, Workspace<P>& scratch, View2<S> d,
                bool adds_weight, std::function<void()> const& ready = {}) const;
  void backward_weight(Matrix<P> const& weight, HeadUse<P> const& use, Workspace<P>& scratch) const;

private:
  void add_weight(Matrix<P> const& weight, HeadUse<P> const& use, parallel::WholeRows<S>& input) const;

  parallel::TensorParallel* tp_;
  parallel::VocabShard block_;
  double factor_;   ///< 1 / model.logits_scaling
  double softcap_;  ///< the cap of logits; 0: none
};

}  // namespace p3d::model
