// SPDX-License-Identifier: Apache-2.0
#include "late_start.hpp"

#include <algorithm>
#include <list>
#include <vector>

namespace p3d::comm::detail {

namespace {

/// True where one of the two must begin before the other one.
bool same_line(Pending const& a, Pending const& b) {
  auto const of_b = [&](std::int64_t line) { return line == b.line || line == b.second_line; };
  return a.comm == b.comm && (of_b(a.line) || (a.second_line >= 0 && of_b(a.second_line)));
}

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
  std::vector<Pending const*> held;  // those that have not begun, up to here
  for (auto late = all.begin(); late != all.end();) {
    bool const behind =
        std::any_of(held.begin(), held.end(), [&](auto const* before) { return same_line(*before, *late->pending); });
    if (behind || (late->ready && !late->ready())) {
      held.push_back(late->pending);
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
