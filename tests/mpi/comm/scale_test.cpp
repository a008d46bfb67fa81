// SPDX-License-Identifier: Apache-2.0
// The algorithms between thousands of nodes, without MPI: their own messages on simulated links. A node sends one
// message after the other and takes in one after the other, both at once; a message takes an overhead of its sender, a
// latency, and its bytes over the bandwidth.
#include <comm/message_steps.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

using namespace p3d::comm::detail;

namespace {

struct Network {
  double latency, overhead, bandwidth;  ///< seconds, seconds, bytes a second
};
constexpr Network fabric{2e-6, 0.5e-6, 25e9};  // 200 Gbit/s
constexpr Network ethernet{30e-6, 5e-6, 1.25e9};

/// When each node's links are free, and what time it is there.
class Links {
public:
  Links(Network const& network, int nodes) : network_(network), out_(static_cast<std::size_t>(nodes), 0.0), in_(out_) {}
  /// A message that is given at `start`: when it has arrived.
  double deliver(int from, int to, double bytes, double start) {
    auto& out = out_[static_cast<std::size_t>(from)];
    auto& in = in_[static_cast<std::size_t>(to)];
    double const wire = bytes / network_.bandwidth, begin = std::max(start, out) + network_.overhead;
    out = begin + wire;
    in = std::max(in, begin + network_.latency) + wire;
    return in;
  }
  double sent(int from) const { return out_[static_cast<std::size_t>(from)]; }

private:
  Network network_;
  std::vector<double> out_, in_;
};

/// Seconds of an all-reduce by steps.
double by_steps(Network const& network, int nodes, double bytes, std::vector<Step> (*make)(int, int), int parts) {
  std::vector<std::vector<Step>> steps;
  for (int r = 0; r < nodes; ++r) steps.push_back(make(r, nodes));
  Links links(network, nodes);
  std::vector<double> now(steps.size(), 0.0);
  std::vector<std::size_t> at(steps.size(), 0);
  std::vector<bool> sent(steps.size(), false);
  struct Arrival {
    int from;
    double time;
  };
  std::vector<std::vector<Arrival>> arrivals(steps.size());
  auto const move = [&](std::size_t r) {
    if (at[r] == steps[r].size()) return false;
    auto const& step = steps[r][at[r]];
    bool moved = false;
    if (step.send_to >= 0 && !sent[r]) {
      double const size = bytes * (step.sends.end - step.sends.begin) / parts;
      double const arrival = links.deliver(static_cast<int>(r), step.send_to, size, now[r]);
      arrivals[static_cast<std::size_t>(step.send_to)].push_back({static_cast<int>(r), arrival});
      moved = sent[r] = true;
    }
    if (step.receive_from >= 0) {
      auto& there = arrivals[r];
      auto const found =
          std::find_if(there.begin(), there.end(), [&](Arrival const& a) { return a.from == step.receive_from; });
      if (found == there.end()) return moved;
      now[r] = std::max(now[r], found->time);
      there.erase(found);
    }
    if (sent[r]) now[r] = std::max(now[r], links.sent(static_cast<int>(r)));
    sent[r] = false;
    ++at[r];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < steps.size(); ++r) moved = move(r) || moved;
  }
  for (std::size_t r = 0; r < steps.size(); ++r) EXPECT_EQ(at[r], steps[r].size()) << "node " << r << " is stuck";
  return *std::max_element(now.begin(), now.end());
}

/// Seconds of an all-reduce in pairs: every node sends each other one its share, and then its own sum.
double by_pairs(Network const& network, int nodes, double bytes) {
  std::vector<Pairs> pairs;
  for (int r = 0; r < nodes; ++r) pairs.push_back(all_pairs(r, nodes));
  std::vector<double> now(pairs.size(), 0.0);
  for (int half = 0; half < 2; ++half) {
    Links links(network, nodes);
    auto after = now;
    for (std::size_t i = 0; i + 1 < pairs.size(); ++i) {
      for (std::size_t r = 0; r < pairs.size(); ++r) {
        int const to = pairs[r].owners[i].rank;
        double const arrival = links.deliver(static_cast<int>(r), to, bytes / nodes, now[r]);
        after[static_cast<std::size_t>(to)] = std::max(after[static_cast<std::size_t>(to)], arrival);
      }
    }
    now = after;
  }
  return *std::max_element(now.begin(), now.end());
}

/// The share of the bound 2 (n-1)/n bytes / bandwidth that an algorithm reaches.
double of_bound(Network const& network, int nodes, double bytes, double seconds) {
  return 2.0 * (nodes - 1) / nodes * bytes / network.bandwidth / seconds;
}

constexpr double mebibyte = 1 << 20;

TEST(Scale, HalvingReachesTheBoundOnThousandsOfNodes) {
  for (auto const& network : {fabric, ethernet}) {
    for (int nodes : {8, 64, 512, 4096}) {
      for (double const size : {1.0, 16.0, 64.0}) {
        double const bytes = size * mebibyte;
        double const halving = of_bound(network, nodes, bytes, by_steps(network, nodes, bytes, halving_steps, nodes));
        double const tree = of_bound(network, nodes, bytes, by_steps(network, nodes, bytes, tree_steps, 1));
        std::printf("%5.1f Gbit/s, %4d nodes, %2.0f MiB: halving %.2f of the bound, tree %.2f\n",
                    network.bandwidth * 8e-9, nodes, size, halving, tree);
        if (size >= 16.0) {
          EXPECT_GE(halving, 0.85) << nodes << " nodes, " << size << " MiB";
        }
        // Its root moves the buffer log2(n) times, both ways.
        EXPECT_LE(tree, 1.01 / std::log2(nodes)) << "the simulation is too kind";
        EXPECT_LE(halving, 1.0 + 1e-12);
      }
    }
  }
}

TEST(Scale, PairsReachTheBoundWhereMessagesAreLong) {
  for (auto const& network : {fabric, ethernet}) {
    for (int nodes : {6, 48, 384, 1536}) {
      for (double const size : {1.0, 16.0, 64.0}) {
        double const bytes = size * mebibyte;
        double const pairs = of_bound(network, nodes, bytes, by_pairs(network, nodes, bytes));
        std::printf("%5.1f Gbit/s, %4d nodes, %2.0f MiB: pairs %.2f of the bound\n", network.bandwidth * 8e-9, nodes,
                    size, pairs);
        double const wire = bytes / nodes / network.bandwidth;
        if (wire >= 6 * network.overhead && nodes * wire >= 20 * network.latency) {
          EXPECT_GE(pairs, 0.8) << nodes << " nodes, " << size << " MiB";
        }
        EXPECT_LE(pairs, 1.0 + 1e-12);
      }
    }
  }
}

}  // namespace
