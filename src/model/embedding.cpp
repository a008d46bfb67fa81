// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/embedding.hpp>

#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/embedding.hpp>

namespace p3d::model {

parallel::VocabShard vocabulary_block(config::Config const& c, parallel::TensorParallel const& tp, int pipeline_rank) {
  int const parts = c.vocabulary_parts();
  return parallel::vocab_shard(c.model.vocab_size, parts, (pipeline_rank * tp.size() + tp.rank()) % parts);
}

template <class P>
Embedding<P>::Embedding(config::Config const& c, parallel::TensorParallel& tp, int pipeline_rank)
    : tp_(&tp),
      block_(c.replicates_embedding() ? parallel::whole_vocabulary(c.model.vocab_size)
                                      : vocabulary_block(c, tp, pipeline_rank)),
      dropout_(kernels::make_dropout(c.model.dropout, c.run.seed, "dropout.embed", c.model.embedding_multiplier)) {}

template <class P>
void Embedding<P>::look_up(Matrix<P> const& weight, View1<int const> tokens, View2<S> out, View2<S> all) const {
  parallel::vocab_embedding_forward<S>(*tp_, block_, tokens, weight.value, out, all);
}

template <class P>
void Embedding<P>::add_gradient(Matrix<P> const& weight, View1<int const> tokens, View2<S const> d,
                                View2<S> all) const {
  parallel::vocab_embedding_backward<S, typename P::Gradient>(*tp_, block_, tokens, d, all, weight.grad);
}

template <class P>
void Embedding<P>::finish(Matrix<P> const& positions, kernels::TokenRows rows, bool training, View2<S> x) const {
  auto const own = own_rows(*tp_, rows);
  if (positions.value.extent(0) > 0) kernels::position_forward<S>(tp_->exec, own, positions.value, x);
  kernels::dropout_in_place<S>(tp_->exec, own, training ? dropout_ : dropout_.off(), x);
}

template <class P>
void Embedding<P>::finish_gradient(kernels::TokenRows rows, View2<S> d) const {
  kernels::dropout_in_place<S>(tp_->exec, own_rows(*tp_, rows), dropout_, d);
}

template <class P>
void Embedding<P>::add_position_gradient(Matrix<P> const& positions, kernels::TokenRows rows, View2<S const> d) const {
  if (positions.grad.extent(0) == 0) return;
  kernels::position_backward<S, typename P::Gradient>(tp_->exec, own_rows(*tp_, rows), d, positions.grad);
}

#define P3D_INSTANTIATE(P) template class Embedding<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
