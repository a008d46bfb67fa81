// SPDX-License-Identifier: Apache-2.0
// Reductions, and the passes in their order.

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

namespace p3d::schedule {

void add_reductions(Program& program) {
  require_in_range(program);
  std::vector<int> last(static_cast<std::size_t>(program.num_stages), -1);
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (makes_weight_gradient(actions[i].op) || makes_vocabulary_gradient(actions[i].op))
        last[static_cast<std::size_t>(actions[i].stage)] = static_cast<int>(i);
  std::vector<Action> merged;
  for (auto& actions : program.ranks) {
    merged.clear();
    merged.reserve(actions.size() + 2);
    int pending = -1;  // a stage whose reduction waits until the send that follows its last backward is under way
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      P3D_REQUIRE(a.op != Op::reduce_gradients && a.op != Op::optimizer_step, "reductions are added once");
      if (pending >= 0 && !is_send(a.op)) {
        merged.push_back({Op::reduce_gradients, pending});
        pending = -1;
      }
      merged.push_back(a);
      if (computes(a.op) && last[static_cast<std::size_t>(a.stage)] == static_cast<int>(i)) pending = a.stage;
    }
    if (pending >= 0) merged.push_back({Op::reduce_gradients, pending});
    merged.push_back({Op::optimizer_step});
    actions = merged;
  }
}

Program complete(Program compute, int receives_ahead, int slot_lookahead) {
  assign_slots(compute, slot_lookahead);
  add_messages(compute, receives_ahead);
  add_reductions(compute);
  return compute;
}

}  // namespace p3d::schedule
