// SPDX-License-Identifier: Apache-2.0
#pragma once
// The algorithms of a prepared communicator: its engines, and the choice of one by place and length.

#include <p3d/comm/all_reduce.hpp>

#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"
#include "internal.hpp"
#include "shared_engine.hpp"

namespace p3d::comm::detail {

/// Owns the engines of one communicator. Which of them exist follows from the algorithm and from the nodes.
class AllReducer {
public:
  /// Collective over the communicator. Throws on all ranks when `algorithm` is not possible here.
  AllReducer(Communicator& comm, AllReduce algorithm);
  ~AllReducer();
  AllReducer(AllReducer const&) = delete;
  AllReducer& operator=(AllReducer const&) = delete;

  /// The algorithm for host buffers of this many bytes.
  AllReduce choice(std::int64_t bytes) const;
  /// The engine for a collective.
  Engine& engine(Collective kind, std::int64_t bytes) const;
  /// The nodes that the ranks are on.
  int nodes() const { return static_cast<int>(nodes_.size()); }
  /// The choice in words: "tree, ring from 32.00 KiB".
  std::string describe() const;

private:
  struct Region;

  void find_places(Communicator& comm);
  bool find_regions(Communicator& comm);
  SharedSizes sizes() const;
  SharedEngine::Team make_team(std::vector<std::vector<int>> const& shares) const;
  std::unique_ptr<Engine> make_between(int number);
  void make_shared(Communicator& comm);
  void make_messages(Communicator& comm);

  int rank_ = 0;
  int size_ = 1;
  std::vector<std::vector<int>> nodes_;  ///< the ranks of each node, ascending; nodes in the order of their first rank
  std::size_t node_ = 0;                 ///< index of this rank's node
  int most_on_a_node_ = 1;               ///< ranks of the largest node
  int lanes_ = 1;                        ///< ranks of the smallest node
  std::vector<int> numbers_;             ///< number of each rank on this node, -1 for ranks of other nodes
  Communicator messages_, between_nodes_;
  std::unique_ptr<Region> region_;
  /// tree_ serves all-reduces; pairs_ serves their halves in the tree's order. All engines must be destroyed before
  /// region_.
  std::unique_ptr<Engine> shared_, ring_, tree_, pairs_;
  AllReduce algorithm_ = AllReduce::automatic;  ///< automatic: ranks share no memory, and the length chooses
};

}  // namespace p3d::comm::detail
