// SPDX-License-Identifier: Apache-2.0
#pragma once
// The embedding of one rank: the block of the vocabulary's rows that it looks up, and what the first stage does to the
// rows that were looked up (positions, multiplier, dropout). Stages, generation, multi-token prediction and ranks of a
// divided vocabulary (vocabulary.hpp) use the same object. It holds no weights.

#include <p3d/model/parameters.hpp>
#include <p3d/parallel/vocab.hpp>

#include <p3d/config/config.hpp>
#include <p3d/kernels/common.hpp>

namespace p3d::model {

/// The block of the vocabulary that a rank of pipeline rank `pipeline_rank` has: one of tp, or, where the vocabulary is
/// divided over the pipeline, one of pp x tp.
parallel::VocabShard vocabulary_block(config::Config const& config, parallel::TensorParallel const& tp,
                                      int pipeline_rank);

template <class P>
class Embedding {
public:
  using S = typename P::Storage;
  /// Looks up the rows of vocabulary_block(), or all where each rank of tp has them (parallel.embedding). `tp` must
  /// outlive it.
  Embedding(config::Config const& config, parallel::TensorParallel& tp, int pipeline_rank);

  /// out [own rows, hidden] = the rows of `tokens` [N], summed over tp; zeros for tokens of ranks beyond tp. `all`
  /// [N, hidden] is memory for sequence parallelism (parallel::vocab_embedding_forward).
  void look_up(Matrix<P> const& weight, View1<int const> tokens, View2<S> out, View2<S> all) const;
  /// Adds the gradient of look_up() to that of the weight; `d` [own rows, hidden].
  void add_gradient(Matrix<P> const& weight, View1<int const> tokens, View2<S const> d, View2<S> all) const;

  /// On the first stage x [own rows, hidden], looked up, becomes the input of the layers; `rows` are all rows of the
  /// microbatch. `positions` is empty where they are not learned. Dropout is for training alone.
  void finish(Matrix<P> const& positions, kernels::TokenRows rows, bool training, View2<S> x) const;
  /// From the gradient of finish()'s result to that of what was looked up, in place.
  void finish_gradient(kernels::TokenRows rows, View2<S> d) const;
  /// Adds the gradient of the positions; `d` is what finish_gradient() leaves.
  void add_position_gradient(Matrix<P> const& positions, kernels::TokenRows rows, View2<S const> d) const;

private:
  parallel::TensorParallel* tp_;
  parallel::VocabShard block_;
  kernels::Dropout dropout_;
};

}  // namespace p3d::model
