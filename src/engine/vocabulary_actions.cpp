// SPDX-License-Identifier: Apache-2.0
#include "vocabulary_actions.hpp"

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/engine/precision.hpp>

#include "typed_port.hpp"

#include <vector>

namespace p3d::engine {

using schedule::Action;
using schedule::Op;
using schedule::vocabulary_slots;

static_assert(vocabulary_slots == schedule::VocabularySlots{2, 2, 2}, "as model::VocabularyPart has buffers");

template <class P>
PartActions<P>::PartActions(model::VocabularyPart<P>& part, model::WeightProvider<P>& weights,
                            VocabularyCommunicators& communicators, device::ExecSpace const& exec, int first, int last)
    : part_(&part), weights_(&weights), to_(&communicators), exec_(exec), first_(first), last_(last) {}

template <class P>
void PartActions<P>::begin(schedule::Program const& program, bool training) {
  training_ = training;
  microbatches_ = program.num_microbatches;
  for (int m = 0; m < vocabulary_slots.head && !gives_output(); ++m) share_output(m);
  for (int m = 0; m < vocabulary_slots.gradient && !gives_gradient(); ++m) share_gradient(m);
}

template <class P>
void PartActions<P>::share_output(int m) {
  if (m >= microbatches_) return;
  int const slot = m % vocabulary_slots.head;
  output_[at(slot)] =
      collectives::start_broadcast<S>(exec_, to_->output, device::flat(part_->output(slot, size(m))), last_);
}

template <class P>
void PartActions<P>::share_gradient(int m) {
  if (m >= microbatches_ || !training_) return;
  int const slot = m % vocabulary_slots.gradient;
  gradient_[at(slot)] =
      collectives::start_broadcast<S>(exec_, to_->gradient, device::flat(part_->gradient(slot, size(m))), first_);
}

template <class P>
void PartActions<P>::prepare(Action const& a, Wait const& wait) {
  auto const slot = at(a.slot);
  switch (a.op) {
    case Op::embed_forward: return wait(sum_[slot]);
    case Op::head_forward:
      if (!gives_output()) wait(output_[slot]);  // else the buffer was filled here
      return;
    case Op::head_backward:
      wait(output_[slot]);
      wait(parts_[slot]);
      return wait(input_gradient_[slot]);
    case Op::embed_backward:
      if (!gives_gradient()) wait(gradient_[slot]);
      return;
    default: P3D_REQUIRE(false, "only E, S, T and G belong to the vocabulary");
  }
}

template <class P>
void PartActions<P>::execute(Action const& a, double loss_scale, Wait const& wait) {
  auto const& w = weights_->weights(a.version);
  auto const slot = at(a.slot);
  auto const& m = size(a.microbatch);
  switch (a.op) {
    case Op::embed_forward:
      part_->embed_forward(w, a.slot, m);
      sum_[slot] = collectives::start_all_reduce<S>(exec_, to_->sum, device::flat(part_->sum(a.slot, m)));
      return;
    case Op::head_forward: {
      part_->head_forward(w, a.slot, m);
      std::vector<std::int64_t> bounds;  // first elements of the blocks, and the end
      for (int r = 0; r <= part_->ranks(); ++r) bounds.push_back(r * part_->part_size(m));
      parts_[slot] =
          collectives::start_all_gather<typename P::Accumulate>(exec_, to_->parts, part_->parts(a.slot, m), bounds);
      return;
    }
    case Op::head_backward: {
      part_->head_backward(w, a.slot, m, gives_output(), training_, loss_scale, [&] {
        input_gradient_[slot] = collectives::start_all_reduce<S>(exec_, to_->input_gradient,
                                                                 device::flat(part_->input_gradient(a.slot, m)));
      });
      if (!gives_output()) share_output(a.microbatch + vocabulary_slots.head);
      return;
    }
    case Op::embed_backward:
      part_->embed_backward(w, a.slot, m);
      wait(gradient_[slot]);
      if (!gives_gradient()) share_gradient(a.microbatch + vocabulary_slots.gradient);
      return;
    default: P3D_REQUIRE(false, "only E, S, T and G belong to the vocabulary");
  }
}

template <class P>
void PartActions<P>::begin_forward(int m, SlotRows input, Wait const& wait) {
  int const slot = m % vocabulary_slots.embed;
  wait(sum_[at(slot)]);
  Kokkos::deep_copy(exec_, typed<S>(input), part_->sum(slot, size(m)));
}

template <class P>
void PartActions<P>::end_forward(int m, SlotRows result, Wait const& wait) {
  int const slot = m % vocabulary_slots.head;
  wait(output_[at(slot)]);
  Kokkos::deep_copy(exec_, part_->output(slot, size(m)), typed<S const>(result));
  share_output(m);
}

template <class P>
SlotRows PartActions<P>::begin_backward(int m, Wait const& wait) {
  int const slot = m % vocabulary_slots.head;
  wait(input_gradient_[at(slot)]);
  return slot_rows(part_->input_gradient(slot, size(m)));
}

template <class P>
void PartActions<P>::end_backward(int m, SlotRows gradient, Wait const& wait) {
  int const slot = m % vocabulary_slots.gradient;
  wait(gradient_[at(slot)]);
  Kokkos::deep_copy(exec_, part_->gradient(slot, size(m)), typed<S const>(gradient));
  share_gradient(m);
}

template <class P>
void PartActions<P>::finish(Wait const& wait) {
  for (auto* requests : {&sum_, &output_, &parts_, &input_gradient_, &gradient_})
    for (auto& request : *requests) wait(request);
}

#define P3D_INSTANTIATE(P) template class PartActions<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
