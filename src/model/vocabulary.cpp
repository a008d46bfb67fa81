// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/vocabulary.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/cross_entropy.hpp>

#include <algorithm>

namespace p3d::model {

template <class P>
VocabularyPart<P>::VocabularyPart(config::Config const& c, int pipeline_rank, parallel::TensorParallel& tp,
                                  device::Arena& arena, Workspace<P>& scratch)
    : ranks_(c.parallel.pp * c.parallel.tp),
      number_(pipeline_rank * tp.size() + tp.rank()),
      shard_(parallel::vocab_shard(c.model.vocab_size, ranks_, number_)),
      softcap_(c.model.logits_softcap),
      tp_(&tp),
      scratch_(&scratch) {
  auto const s = layout::block_sizes(c, scratch.rank);
  tokens_ = s.tokens;
  std::array<Slot*, 6> const slots{&embeds_[0], &embeds_[1], &gradients_[0], &gradients_[1], &heads_[0], &heads_[1]};
  for (auto const& taken : layout::vocabulary_buffers())
    parallel::bind(*slots[at(taken.index)], parallel::take<S>(arena, taken.buffer, s));
}

template <class P>
void VocabularyPart<P>::copy(std::span<int const> from, View1<int> to) const {
  P3D_REQUIRE(from.size() == to.extent(0), "a microbatch has the rank's tokens");
  device::copy_from_host<int>(tp_->exec, from, to);
}

template <class P>
void VocabularyPart<P>::embed_forward(StageWeights<P> const& w, int slot) {
  auto& s = embeds_[at(slot)];
  parallel::vocab_embedding_forward<S>(*tp_, shard_, s.tokens, w.embedding.value, s.rows, scratch_->block.branch);
}

template <class P>
void VocabularyPart<P>::head_forward(StageWeights<P> const& w, int slot) {
  auto& s = heads_[at(slot)];
  auto input = parallel::start_gather_rows<S>(*tp_, s.input, scratch_->block.gathered, parallel::Gather::in_chunks);
  parallel::column_linear_forward<S>(*tp_, input, w.head.value, View1<S const>(), s.logits);
  kernels::cap_logits<S>(tp_->exec, softcap_, s.logits);
  A* const mine = s.parts.data() + number_ * part_size();
  View1<A> const top(mine, tokens_);
  kernels::logits_parts<S>(tp_->exec, s.logits, shard_.valid_rows, shard_.begin, s.targets, top, top,
                           View2<A>(mine + tokens_, 2, tokens_));
}

template <class P>
void VocabularyPart<P>::head_backward(StageWeights<P> const& w, int slot, bool counts, bool training, double loss_scale,
                                      std::function<void()> const& shared) {
  auto& s = heads_[at(slot)];
  auto const top = scratch_->row_max;
  auto const sums = scratch_->sums;
  kernels::combine_parts<A>(tp_->exec, ranks_, s.parts, top, sums);
  kernels::cross_entropy_loss<A>(tp_->exec, s.targets, top, sums, s.lse, counts ? scratch_->loss_sum : View1<double>());
  if (!training) return;
  auto input = parallel::start_gather_rows<S>(*tp_, s.input, scratch_->block.gathered);
  parallel::vocab_loss_backward<S>(*tp_, shard_, s.targets, s.lse, static_cast<A>(loss_scale), s.logits, softcap_);
  auto const whole = tp_->sequence ? scratch_->dfinal : s.gradient;
  auto summed = parallel::column_linear_backward_input<S>(*tp_, s.logits, w.head.value, whole);
  // With tensor parallelism the weight's GEMM hides its sum; without, the other ranks need not wait for that GEMM.
  auto const weight = [&] {
    parallel::linear_backward_weight<S, typename P::Gradient>(tp_->exec, s.logits, input.wait(), w.head.grad);
  };
  bool const sums_over_tp = tp_->size() > 1;
  if (sums_over_tp) weight();
  summed.wait();
  if (tp_->sequence) Kokkos::deep_copy(tp_->exec, s.gradient, own_rows(*tp_, whole));
  shared();
  if (!sums_over_tp) weight();
}

template <class P>
void VocabularyPart<P>::embed_backward(StageWeights<P> const& w, int slot) {
  auto& s = gradients_[at(slot)];
  parallel::vocab_embedding_backward<S, typename P::Gradient>(*tp_, shard_, s.tokens, s.rows, scratch_->block.branch,
                                                              w.embedding.grad);
}

#define P3D_INSTANTIATE(P) template class VocabularyPart<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
