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

#define P3D_INSTANTIATE(P) template void Trainer<P>::State::divide_vocabulary();
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
