// SPDX-License-Identifier: Apache-2.0
// Forwards and backwards of different microbatches next to each other.

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <utility>

namespace p3d::schedule {

void exchange_pairs(Program& compute) {
  for (auto& actions : compute.ranks)
    for (std::size_t i = 0; i + 1 < actions.size(); ++i) {
      if (!can_pair(actions[i + 1], actions[i])) continue;
      std::swap(actions[i], actions[i + 1]);
      ++i;
    }
}

void close_pairs(Program& program) {
  std::vector<Action> out;
  for (auto& actions : program.ranks) {
    out.clear();
    out.reserve(actions.size());
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      std::size_t next = i + 1;
      while (a.op == Op::forward && next < actions.size() && is_message(actions[next].op)) ++next;
      if (next >= actions.size() || !can_pair(a, actions[next])) {
        out.push_back(a);
        continue;
      }
      // Messages that need the forward remain behind it, and receives keep their order.
      std::vector<Action> behind;
      bool first = true;
      for (auto k = i + 1; k < next; ++k) {
        Action const& m = actions[k];
        first = first && !(is_recv(m.op) && m.stage == a.stage && m.microbatch == a.microbatch);
        (is_recv(m.op) && first ? out : behind).push_back(m);
      }
      out.push_back(a);
      out.push_back(actions[next]);
      out.insert(out.end(), behind.begin(), behind.end());
      i = next;
    }
    actions = out;
  }
}

}  // namespace p3d::schedule
