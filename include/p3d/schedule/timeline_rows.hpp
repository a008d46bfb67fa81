// SPDX-License-Identifier: Apache-2.0
#pragma once
// A timeline by rank, and the kinds of events that readers of pictures and traces tell apart.

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/timeline.hpp>

#include <limits>

namespace p3d::schedule {

struct TimelineRows {
  explicit TimelineRows(Timeline const& timeline);
  std::vector<std::vector<TimelineEvent>> rows;  ///< events of each rank, in order of time
  double begin = 0, end = 0;                     ///< times of the first start and the last end of all events
  double compute_begin = std::numeric_limits<double>::infinity();
  double compute_end = -std::numeric_limits<double>::infinity();
};

/// The kinds of time that a person tells apart.
enum class Category { forward, backward, input, weight, head, head_backward, other, wait };
constexpr Category category_of(Op op) {
  return op == Op::forward                                   ? Category::forward
         : op == Op::backward                                ? Category::backward
         : op == Op::backward_input                          ? Category::input
         : op == Op::backward_weight                         ? Category::weight
         : op == Op::embed_forward || op == Op::head_forward ? Category::head
         : is_vocabulary(op)                                 ? Category::head_backward
                                                             : Category::other;
}
constexpr Category category_of(TimelineEvent const& e) { return e.waits ? Category::wait : category_of(e.action.op); }
constexpr char const* category_name(Category c) {
  switch (c) {
    case Category::forward: return "forward";
    case Category::backward: return "backward";
    case Category::input: return "input part";
    case Category::weight: return "weight part";
    case Category::head: return "vocabulary";
    case Category::head_backward: return "its backward";
    case Category::other: return "other";
    case Category::wait: return "wait";
  }
  return "?";
}

}  // namespace p3d::schedule
