// SPDX-License-Identifier: Apache-2.0
#include "message_steps.hpp"

namespace p3d::comm::detail {

Steps ring_steps(int rank, int num_ranks) {
  Steps out{{}, num_ranks};
  int const right = (rank + 1) % num_ranks;
  int const left = (rank + num_ranks - 1) % num_ranks;
  auto const chunk = [&](int back) { return ((rank - back) % num_ranks + num_ranks) % num_ranks; };
  for (int s = 0; s + 1 < num_ranks; ++s) out.steps.push_back({right, chunk(s), left, chunk(s + 1), true});
  for (int s = 0; s + 1 < num_ranks; ++s) out.steps.push_back({right, chunk(s - 1), left, chunk(s), false});
  return out;
}

Steps tree_steps(int rank, int num_ranks) {
  // Children are rank + 1, 2, 4, ... up to the lowest bit of rank; the parent lacks that bit.
  Steps out;
  std::vector<int> children;
  int bit = 1;
  for (; bit < num_ranks && (rank & bit) == 0; bit *= 2) {
    if (rank + bit < num_ranks) children.push_back(rank + bit);
  }
  for (int const child : children) out.steps.push_back({.receive_from = child, .adds = true});
  if (rank > 0) {
    out.steps.push_back({.send_to = rank - bit});
    out.steps.push_back({.receive_from = rank - bit});
  }
  for (auto child = children.rbegin(); child != children.rend(); ++child) out.steps.push_back({.send_to = *child});
  return out;
}

}  // namespace p3d::comm::detail
