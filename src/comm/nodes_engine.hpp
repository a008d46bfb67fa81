// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives over several nodes: through shared memory inside each node, by messages between nodes. An all-reduce goes
// through SharedEngine, which passes the parts of its segments to the engine between nodes. A reduce-scatter first adds
// up inside the nodes: each member for the ranks with its number on all nodes; then it sends these sums to their
// owners, which add the sums of all nodes. An all-gather takes the same way back: each rank sends its share to one rank
// of every other node, and inside the nodes all ranks give each other what they have.

#include <list>

#include "engine.hpp"
#include "pair_engine.hpp"
#include "shared_engine.hpp"

namespace p3d::comm::detail {

/// The engine of a communicator over several nodes.
class NodesEngine final : public Engine {
public:
  /// `scatter` and `gather` carry what node_pairs() says and nothing else, so that each of the three engines gets its
  /// works in the same order on all ranks.
  NodesEngine(std::unique_ptr<SharedEngine> inside, std::unique_ptr<PairEngine> scatter,
              std::unique_ptr<PairEngine> gather);

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return journeys_.empty() && inside_->idle(); }

private:
  /// A reduce-scatter or an all-gather, with its two parts.
  struct Journey {
    Work* whole = nullptr;  ///< the work that was started here
    Work inside, between;   ///< its part inside the node, and between nodes
  };

  std::unique_ptr<SharedEngine> inside_;
  std::unique_ptr<PairEngine> scatter_, gather_;
  std::list<Journey> journeys_;  ///< unfinished, oldest first; a list, so that works keep their addresses
};

}  // namespace p3d::comm::detail
