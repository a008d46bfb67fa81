// SPDX-License-Identifier: Apache-2.0
#include "message_steps.hpp"

#include <algorithm>

namespace p3d::comm::detail {

std::vector<Step> tree_steps(int rank, int num_ranks) {
  // Children are rank + 1, 2, 4, ... up to the lowest bit of rank; the parent lacks that bit.
  std::vector<Step> out;
  std::vector<int> children;
  int bit = 1;
  for (; bit < num_ranks && (rank & bit) == 0; bit *= 2) {
    if (rank + bit < num_ranks) children.push_back(rank + bit);
  }
  for (int const child : children) out.push_back({.receive_from = child, .adds = true});
  if (rank > 0) {
    out.push_back({.send_to = rank - bit});
    out.push_back({.receive_from = rank - bit});
  }
  for (auto child = children.rbegin(); child != children.rend(); ++child) out.push_back({.send_to = *child});
  return out;
}

std::vector<Step> halving_steps(int rank, int num_ranks) {
  std::vector<Step> out;
  Parts own{0, num_ranks};  // the parts that this rank still adds up
  for (int bit = 1; bit < num_ranks; bit *= 2) {
    int const middle = (own.begin + own.end) / 2, partner = rank ^ bit;
    Parts const lower{own.begin, middle}, upper{middle, own.end};
    bool const keeps_upper = (rank & bit) != 0;
    own = keeps_upper ? upper : lower;
    out.push_back({.send_to = partner,
                   .receive_from = partner,
                   .adds = true,
                   .first = keeps_upper,
                   .sends = keeps_upper ? lower : upper,
                   .receives = own});
  }
  // The way back: each exchange sends the parts that it received, and receives those that it sent.
  for (auto step = out.size(); step-- > 0;)
    out.push_back({.send_to = out[step].send_to,
                   .receive_from = out[step].send_to,
                   .sends = out[step].receives,
                   .receives = out[step].sends});
  return out;
}

Pairs all_pairs(int rank, int num_ranks) {
  Pairs out{.shares = num_ranks, .own_share = rank, .place = rank};
  for (int s = 1; s < num_ranks; ++s) {
    int const owner = (rank + s) % num_ranks;
    out.owners.push_back({owner, owner});
  }
  for (int r = 0; r < num_ranks; ++r) {
    if (r != rank) out.givers.push_back(r);
  }
  return out;
}

Pairs node_pairs(std::vector<std::vector<int>> const& nodes, int rank) {
  Pairs out{.shares = 0, .own_share = rank};
  std::size_t own_node = 0, number = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    out.shares += static_cast<int>(nodes[node].size());
    auto const found = std::find(nodes[node].begin(), nodes[node].end(), rank);
    if (found == nodes[node].end()) continue;
    own_node = node;
    number = static_cast<std::size_t>(found - nodes[node].begin());
  }
  out.place = static_cast<int>(own_node);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (node != own_node) out.givers.push_back(nodes[node][number % nodes[node].size()]);
  }
  for (std::size_t s = 1; s < nodes.size(); ++s) {
    auto const& others = nodes[(own_node + s) % nodes.size()];
    for (auto k = number; k < others.size(); k += nodes[own_node].size()) out.owners.push_back({others[k], others[k]});
  }
  return out;
}

std::vector<std::vector<int>> node_shares(std::vector<std::vector<int>> const& nodes, std::size_t node) {
  std::vector<std::vector<int>> out(nodes[node].size());
  for (auto const& ranks : nodes) {
    for (std::size_t k = 0; k < ranks.size(); ++k) out[k % out.size()].push_back(ranks[k]);
  }
  return out;
}

}  // namespace p3d::comm::detail
