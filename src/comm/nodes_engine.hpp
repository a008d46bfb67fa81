// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives over several nodes: through shared memory inside each, by messages between them. An all-reduce goes
// through SharedEngine, which hands on the parts of its segments. A reduce-scatter first adds up inside the nodes: each
// member for the ranks with its number on all nodes; then it sends these sums to their owners, which add what comes
// from the nodes. An all-gather goes the same way back: each rank sends its share to one rank of every other node, and
// inside the nodes all give each other what they have.

#include <list>

#include "engine.hpp"
#include "pair_engine.hpp"
#include "shared_engine.hpp"

namespace p3d::comm::detail {

class NodesEngine final : public Engine {
public:
  /// `scatter` and `gather` carry what node_pairs() say and nothing else, so that each of the three has its works in
  /// the same order on all ranks.
  NodesEngine(std::unique_ptr<SharedEngine> inside, std::unique_ptr<PairEngine> scatter,
              std::unique_ptr<PairEngine> gather);

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return journeys_.empty() && inside_->idle(); }

private:
  struct Journey {
    Work* whole = nullptr;
    Work inside, between;
  };

  std::unique_ptr<SharedEngine> inside_;
  std::unique_ptr<PairEngine> scatter_, gather_;
  std::list<Journey> journeys_;  ///< unfinished, oldest first; they stay where they are
};

}  // namespace p3d::comm::detail
