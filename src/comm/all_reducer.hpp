// SPDX-License-Identifier: Apache-2.0
#pragma once
// The algorithms of a prepared communicator: its engines, and the choice of one by the length of a buffer.

#include <p3d/comm/all_reduce.hpp>

#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"
#include "internal.hpp"
#include "shared_engine.hpp"

namespace p3d::comm::detail {

/// Owns the engines of one communicator. Which of them exist follows from AllReduceSettings and from the nodes.
class AllReducer {
public:
  /// Collective over the communicator. Throws on all ranks when `settings` ask for something that is not possible here.
  AllReducer(Communicator& comm, AllReduceSettings const& settings);
  ~AllReducer();
  AllReducer(AllReducer const&) = delete;
  AllReducer& operator=(AllReducer const&) = delete;

  /// Fills the table with the quickest algorithm for each length. Collective; the trials run through `comm`, which uses
  /// this object.
  void measure(Communicator& comm);

  /// The algorithm for host buffers of this many bytes.
  AllReduce choice(std::int64_t bytes) const;
  /// The engine for a collective; null: MPI carries it out (never for 16-bit numbers).
  Engine* engine(Collective kind, std::int64_t bytes, ElementType type) const;
  /// The table in words: "mpi, ring from 64.00 KiB".
  std::string describe() const;

private:
  struct Region;
  /// A row of the table: it holds from `bytes` on, up to the next row.
  struct Row {
    std::int64_t bytes;
    AllReduce algorithm;
  };

  void find_places(Communicator& comm);
  bool find_regions(Communicator& comm);
  SharedSizes sizes() const;
  SharedEngine::Team make_team(std::vector<std::vector<int>> const& shares) const;
  std::unique_ptr<Engine> make_between(Communicator& comm, int number, bool fixed_order);
  void make_shared(Communicator& comm, bool fixed_order);
  void make_messages(Communicator& comm);
  void choose_by_rule();

  int rank_ = 0;
  int size_ = 1;
  std::vector<std::vector<int>> nodes_;  ///< the ranks of each node, ascending; nodes in the order of their first rank
  std::size_t node_ = 0;                 ///< index of this rank's node
  int most_on_a_node_ = 1;               ///< ranks of the largest node
  int lanes_ = 1;                        ///< ranks of the smallest node
  std::vector<int> numbers_;             ///< by rank: its number on this node, -1 for ranks of other nodes
  Communicator messages_, between_nodes_, lane_;
  std::unique_ptr<Region> region_;
  /// tree_ serves all-reduces; pairs_ serves their halves in the tree's order. All engines must be destroyed before
  /// region_.
  std::unique_ptr<Engine> shared_, ring_, tree_, pairs_;
  std::vector<Row> table_;  ///< ascending; the first row begins at 0
};

}  // namespace p3d::comm::detail
