// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/vocab.hpp>

#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/cross_entropy.hpp>
#include <p3d/kernels/embedding.hpp>

namespace p3d::parallel {

template <class T>
void vocab_embedding_forward(TensorParallel& tp, VocabShard const& shard, View1<int const> tokens,
                             View2<T const> weight, View2<T> out) {
  kernels::embedding_forward<T>(tp.exec, tokens, weight, shard.begin, out);
  collectives::all_reduce<T>(tp.exec, *tp.comm, device::flat(out));
}

template <class T>
double vocab_loss_forward(TensorParallel& tp, VocabShard const& shard, View2<T const> logits, View1<int const> targets,
                          LossBuffers<T> const& b) {
  // lse holds the shard's own maximum until the last line.
  kernels::logits_parts<T>(tp.exec, logits, shard.valid_rows, shard.begin, targets, b.lse, b.row_max, b.sums);
  if (tp.size() > 1) {
    collectives::all_reduce<T>(tp.exec, *tp.comm, b.row_max, comm::Reduction::max);
    kernels::refer_sums<T>(tp.exec, b.lse, b.row_max, b.sums);
    collectives::all_reduce<T>(tp.exec, *tp.comm, device::flat(b.sums));
  }
  return kernels::cross_entropy_loss<T>(tp.exec, targets, b.row_max, b.sums, b.lse);
}

template <class T>
void vocab_loss_backward(TensorParallel& tp, VocabShard const& shard, View1<int const> targets, View1<T const> lse,
                         T scale, View2<T> logits) {
  kernels::cross_entropy_backward<T>(tp.exec, targets, lse, shard.valid_rows, shard.begin, scale, logits);
}

#define P3D_INSTANTIATE(T)                                                                                       \
  template void vocab_embedding_forward<T>(TensorParallel&, VocabShard const&, View1<int const>, View2<T const>, \
                                           View2<T>);                                                            \
  template double vocab_loss_forward<T>(TensorParallel&, VocabShard const&, View2<T const>, View1<int const>,    \
                                        LossBuffers<T> const&);                                                  \
  template void vocab_loss_backward<T>(TensorParallel&, VocabShard const&, View1<int const>, View1<T const>, T,  \
                                       View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
