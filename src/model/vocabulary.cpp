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
      embedding_(c, tp, pipeline_rank),
      head_(c, tp, pipeline_rank),
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
  embedding_.look_up(w.embedding, s.tokens, s.rows, scratch_->block.branch);
}

template <class P>
void VocabularyPart<P>::head_forward(StageWeights<P> const& w, int slot) {
  auto& s = heads_[at(slot)];
  head_.forward_parts(w.head, use_of(s), *scratch_, View1<A>(s.parts.data() + number_ * part_size(), part_size()));
}

template <class P>
void VocabularyPart<P>::head_backward(StageWeights<P> const& w, int slot, bool counts, bool training, double loss_scale,
                                      std::function<void()> const& shared) {
  auto& s = heads_[at(slot)];
  head_.combine(ranks_, s.parts, use_of(s), *scratch_, counts ? scratch_->loss_sum : View1<double>());
  if (!training) return;
  auto const whole = tp_->sequence ? scratch_->dfinal : s.gradient;
  head_.backward(w.head, use_of(s), loss_scale, *scratch_, whole, true, [&] {
    if (tp_->sequence) Kokkos::deep_copy(tp_->exec, s.gradient, own_rows(*tp_, whole));
    shared();
  });
}

template <class P>
void VocabularyPart<P>::embed_backward(StageWeights<P> const& w, int slot) {
  auto& s = gradients_[at(slot)];
  embedding_.add_gradient(w.embedding, s.tokens, s.rows, scratch_->block.branch);
}

#define P3D_INSTANTIATE(P) template class VocabularyPart<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
