// SPDX-License-Identifier: Apache-2.0
// The rank's part of a vocabulary that is divided over the pipeline.

#include "trainer_state.hpp"

namespace p3d::engine {

template <class P>
void Trainer<P>::State::divide_vocabulary() {
  auto& pipeline = mesh.along("pp");
  auto& blocks = along(layout::vocabulary_axes(plan.grid.sizes()));
  auto& to = part_communicators;
  auto const same = [&](char const* name) { return comm::Communicator(pipeline.mpi(), name); };
  to = {same("vocabulary-sum"), same("vocabulary-output"), blocks.split(0, part->number(), "vocabulary-parts"),
        same("vocabulary-input-gradient"), same("vocabulary-gradient")};
  for (auto* summed : {&to.sum, &to.input_gradient}) summed->prepare(all_reduce_settings(config));
  int const last = plan.stages.pipeline_rank(plan.stages.num_stages() - 1);
  part_actions.emplace(*part, to, exec, plan.stages.pipeline_rank(0), last);
  executor->divide_vocabulary(*part_actions);
}

template <class P>
void Trainer<P>::State::load_part(schedule::Op op, int slot, std::int64_t sample, bool training,
                                  std::int64_t eval_batch, std::int64_t index) {
  draw_microbatch(sample, training, eval_batch, index);
  load_drawn_part(op, slot);
}

template <class P>
void Trainer<P>::State::load_drawn_part(schedule::Op op, int slot) {
  auto const length = config.model.seq_len;
  auto tokens = base::TokenSet::range(0, length);
  if (config.parallel.cp > 1) tokens = context.division().of_length(length).tokens(here.cp);
  if (op == schedule::Op::head_forward) return part->load_targets(slot, own_tokens(targets, tokens));
  auto const own = own_tokens(inputs, tokens);
  if (op == schedule::Op::embed_forward) return part->load_embedding(slot, own);
  part->load_gradient(slot, own);
}

#define P3D_INSTANTIATE(P)                                             \
  template void Trainer<P>::State::divide_vocabulary();                \
  template void Trainer<P>::State::load_drawn_part(schedule::Op, int); \
  template void Trainer<P>::State::load_part(schedule::Op, int, std::int64_t, bool, std::int64_t, std::int64_t);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
