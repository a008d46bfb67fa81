// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/vocab.hpp>

#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/cross_entropy.hpp>
#include <p3d/kernels/embedding.hpp>
#include <p3d/parallel/rows.hpp>

#include <algorithm>

namespace p3d::parallel {

VocabShard vocab_shard(std::int64_t vocab_size, TensorParallel const& tp) {
  return vocab_shard(vocab_size, tp.size(), tp.rank());
}

VocabShard vocab_shard(std::int64_t vocab_size, int blocks, int number) {
  auto const shard = layout::padded_shard(vocab_size, blocks, number);
  return {shard.begin, shard.size(), std::clamp<std::int64_t>(vocab_size - shard.begin, 0, shard.size())};
}

VocabShard whole_vocabulary(std::int64_t vocab_size) { return {0, vocab_size, vocab_size, true}; }

namespace {
/// The tokens of this rank's rows.
View1<int const> own_tokens(TensorParallel const& tp, View1<int const> tokens) {
  auto const own = own_range(tp, static_cast<std::int64_t>(tokens.extent(0)));
  return View1<int const>(tokens.data() + own.begin, static_cast<std::size_t>(own.size()));
}
}  // namespace

template <class S>
void vocab_embedding_forward(TensorParallel& tp, VocabShard const& shard, View1<int const> tokens,
                             View2<S const> weight, View2<S> out, View2<S> all) {
  if (shard.whole) return kernels::embedding_forward<S>(tp.exec, own_tokens(tp, tokens), weight, shard.begin, out);
  auto const sums = tp.sequence ? all : out;
  kernels::embedding_forward<S>(tp.exec, tokens, weight, shard.begin, sums);
  start_sum_rows<S>(tp, sums).wait();
  if (tp.sequence) Kokkos::deep_copy(tp.exec, out, own_rows(tp, sums));
}

template <class S, class G>
void vocab_embedding_backward(TensorParallel& tp, VocabShard const& shard, View1<int const> tokens, View2<S const> dout,
                              View2<S> all, View2<G> dweight) {
  if (shard.whole)
    return kernels::embedding_backward<S, G>(tp.exec, own_tokens(tp, tokens), dout, shard.begin, dweight);
  auto whole = start_gather_rows<S>(tp, dout, all);
  kernels::embedding_backward<S, G>(tp.exec, tokens, whole.wait(), shard.begin, dweight);
}

template <class S>
void vocab_loss_forward(TensorParallel& tp, VocabShard const& shard, View2<S const> logits, View1<int const> targets,
                        LossBuffers<device::accumulate_t<S>> const& b, View1<double> total) {
  // lse holds the shard's own maximum until cross_entropy_loss overwrites it.
  kernels::logits_parts<S>(tp.exec, logits, shard.valid_rows, shard.begin, targets, b.lse, b.row_max, b.sums);
  if (tp.size() > 1) {
    collectives::all_reduce<device::accumulate_t<S>>(tp.exec, *tp.comm, b.row_max, comm::Reduction::max);
    kernels::refer_sums<device::accumulate_t<S>>(tp.exec, b.lse, b.row_max, b.sums);
    collectives::all_reduce<device::accumulate_t<S>>(tp.exec, *tp.comm, device::flat(b.sums));
  }
  kernels::cross_entropy_loss<device::accumulate_t<S>>(tp.exec, targets, b.row_max, b.sums, b.lse, total);
}

template <class S>
void vocab_loss_backward(TensorParallel& tp, VocabShard const& shard, View1<int const> targets,
                         View1<device::accumulate_t<S> const> lse, device::accumulate_t<S> scale, View2<S> logits,
                         double cap) {
  kernels::cross_entropy_backward<S>(tp.exec, targets, lse, shard.valid_rows, shard.begin, scale, logits, cap);
}

#define P3D_INSTANTIATE(S)                                                                                       \
  template void vocab_embedding_forward<S>(TensorParallel&, VocabShard const&, View1<int const>, View2<S const>, \
                                           View2<S>, View2<S>);                                                  \
  template void vocab_loss_forward<S>(TensorParallel&, VocabShard const&, View2<S const>, View1<int const>,      \
                                      LossBuffers<device::accumulate_t<S>> const&, View1<double>);               \
  template void vocab_loss_backward<S>(TensorParallel&, VocabShard const&, View1<int const>,                     \
                                       View1<device::accumulate_t<S> const>, device::accumulate_t<S>, View2<S>,  \
                                       double);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(P) P3D_INSTANTIATE_FOR(P::Storage, P::Gradient)
#define P3D_INSTANTIATE_FOR(S, G)                                                                                    \
  template void vocab_embedding_backward<S, G>(TensorParallel&, VocabShard const&, View1<int const>, View2<S const>, \
                                               View2<S>, View2<G>);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE_FOR
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
