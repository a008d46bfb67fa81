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
    : config_(&c),
      ranks_(c.parallel.pp * c.parallel.tp),
      number_(pipeline_rank * tp.size() + tp.rank()),
      embedding_(c, tp, pipeline_rank),
      head_(c, tp, pipeline_rank),
      tp_(&tp),
      scratch_(&scratch) {
  auto const s = layout::block_sizes(c, scratch.rank);
  std::array<Slot*, 6> const slots{&embeds_[0], &embeds_[1], &gradients_[0], &gradients_[1], &heads_[0], &heads_[1]};
  for (auto const& taken : layout::vocabulary_buffers())
    parallel::bind(*slots[at(taken.index)], parallel::take<S>(arena, taken.buffer, s));
}

template <class P>
PartSize const& VocabularyPart<P>::size(std::int64_t length) {
  if (length == 0) length = config_->model.seq_len;
  auto const [known, is_new] = sizes_.try_emplace(length);
  if (is_new) {
    RankPlace const place{scratch_->rank.tp, scratch_->rank.cp, length};
    auto const s = layout::block_sizes(*config_, place);
    known->second = PartSize{length, s.tokens, s.rows};
  }
  return known->second;
}

template <class P>
void VocabularyPart<P>::load(std::span<int const> from, Slot& slot, View1<int> Slot::*to) const {
  slot.loaded = static_cast<std::int64_t>(from.size());
  device::copy_from_host<int>(tp_->exec, from, first(slot.*to, slot.loaded));
}

template <class P>
typename VocabularyPart<P>::Slot& VocabularyPart<P>::begin_action(std::array<Slot, 2>& slots, int slot,
                                                                  PartSize const& m) {
  auto& s = slots[at(slot)];
  P3D_REQUIRE(s.loaded == m.tokens, "a microbatch has the rank's tokens");
  scratch_->begin_action(tp_->exec, m.length);
  return s;
}

template <class P>
void VocabularyPart<P>::embed_forward(StageWeights<P> const& w, int slot, PartSize const& m) {
  auto& s = begin_action(embeds_, slot, m);
  embedding_.look_up(w.embedding, first(s.tokens, m.tokens), sum(slot, m), scratch_->block.branch);
}

template <class P>
void VocabularyPart<P>::head_forward(StageWeights<P> const& w, int slot, PartSize const& m) {
  auto& s = begin_action(heads_, slot, m);
  head_.forward_parts(w.head, use_of(s, m), *scratch_, View1<A>(s.parts.data() + number_ * part_size(m), part_size(m)));
}

template <class P>
void VocabularyPart<P>::head_backward(StageWeights<P> const& w, int slot, PartSize const& m, bool counts, bool training,
                                      double loss_scale, std::function<void()> const& shared) {
  auto& s = begin_action(heads_, slot, m);
  head_.combine(ranks_, parts(slot, m), use_of(s, m), *scratch_, counts ? scratch_->loss_sum : View1<double>());
  if (!training) return;
  auto const own = input_gradient(slot, m), whole = tp_->sequence ? scratch_->dfinal : own;
  head_.backward(w.head, use_of(s, m), loss_scale, *scratch_, whole, true, [&] {
    if (tp_->sequence) Kokkos::deep_copy(tp_->exec, own, own_rows(*tp_, whole));
    shared();
  });
}

template <class P>
void VocabularyPart<P>::embed_backward(StageWeights<P> const& w, int slot, PartSize const& m) {
  auto& s = begin_action(gradients_, slot, m);
  embedding_.add_gradient(w.embedding, first(s.tokens, m.tokens), gradient(slot, m), scratch_->block.branch);
}

#define P3D_INSTANTIATE(P) template class VocabularyPart<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
