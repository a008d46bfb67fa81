// SPDX-License-Identifier: Apache-2.0
#pragma once
// A timeline for tests of what is made of one, and how often a word stands in that.

#include <p3d/schedule/timeline.hpp>

#include <string>

namespace p3d::test {

/// Two ranks for 10 seconds: rank 0 computes 6 and reduces 1, rank 1 computes 8.
inline schedule::Timeline small_timeline() {
  using schedule::Op;
  schedule::Timeline t;
  t.num_ranks = 2;
  t.title = "a <b> & c";
  t.events = {{1, {Op::backward, 1, 0, 0}, 4, 10},  // in any order
              {0, {Op::forward, 0, 0, 0}, 0, 2},        {1, {Op::forward, 1, 0, 0}, 2, 4},
              {0, {Op::backward_input, 0, 0, 0}, 4, 6}, {0, {Op::backward_weight, 0, 0, 0}, 6, 8},
              {0, {Op::reduce_gradients, 0}, 8, 9}};
  return t;
}

/// The number of places of `what` in a text.
inline std::size_t count(std::string const& text, std::string const& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace p3d::test
