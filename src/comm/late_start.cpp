// SPDX-License-Identifier: Apache-2.0
#include "late_start.hpp"

#include <algorithm>
#include <list>
#include <vector>

namespace p3d::comm::detail {

namespace {

bool same_line(Pending const& a, Pending const& b) { return a.comm == b.comm && a.line == b.line; }

struct LateOperation {
  Pending* pending;
  std::function<bool()> ready;
  std::function<void()> begin;
};

/// All late operations, in the order in which they were started.
std::list<LateOperation>& late_operations() {
  static auto& all = *new std::list<LateOperation>;  // requests may outlive statics
  return all;
}

}  // namespace

bool first_of_all(Pending const& pending) {
  auto const& all = late_operations();
  return all.empty() || all.front().pending == &pending;
}

bool may_begin(Pending const& pending, std::function<bool()> const& ready) {
  begin_late_operations();
  auto const before = [&](LateOperation const& late) { return same_line(*late.pending, pending); };
  return std::none_of(late_operations().begin(), late_operations().end(), before) && (!ready || ready());
}

void begin_later(Pending& pending, std::function<bool()> ready, std::function<void()> begin) {
  pending.begun = false;
  late_operations().push_back({&pending, std::move(ready), std::move(begin)});
}

bool begin_late_operations() {
  auto& all = late_operations();
  bool moved = false;
  std::vector<Pending const*> held;  // of each line, the first operation that is not ready
  for (auto late = all.begin(); late != all.end();) {
    bool const behind =
        std::any_of(held.begin(), held.end(), [&](auto const* first) { return same_line(*first, *late->pending); });
    if (behind || (late->ready && !late->ready())) {
      if (!behind) held.push_back(late->pending);
      ++late;
      continue;
    }
    auto const begin = std::move(late->begin);
    late->pending->begun = true;
    late = all.erase(late);
    begin();
    moved = true;
  }
  return moved;
}

void give_up_late(Pending const& pending) {
  bool after = false;
  late_operations().remove_if([&](LateOperation const& late) {
    after = after || late.pending == &pending;
    return after && same_line(*late.pending, pending);
  });
}

}  // namespace p3d::comm::detail
