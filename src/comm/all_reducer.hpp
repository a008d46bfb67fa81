// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a prepared communicator has: its engines, and which of them takes a buffer of a given length.

#include <p3d/comm/all_reduce.hpp>

#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"
#include "internal.hpp"
#include "shared_engine.hpp"

namespace p3d::comm::detail {

class AllReducer {
public:
  /// Collective over the communicator. Throws where `settings` ask for what is not to be had here, on all ranks.
  AllReducer(Communicator& comm, AllReduceSettings const& settings);
  ~AllReducer();
  AllReducer(AllReducer const&) = delete;
  AllReducer& operator=(AllReducer const&) = delete;

  /// Fills the table with the quickest; collective, through `comm`, which uses this.
  void measure(Communicator& comm);

  AllReduce choice(std::int64_t bytes) const;
  /// Null: MPI; never for 16-bit numbers.
  Engine* engine(Collective kind, std::int64_t bytes, ElementType type) const;
  std::string describe() const;

private:
  struct Region;
  /// From `bytes` on, up to the next row.
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
  std::vector<std::vector<int>> nodes_;  ///< the ranks of each, ascending; the nodes in the order of their first
  std::size_t node_ = 0;                 ///< this rank's
  int most_on_a_node_ = 1;
  int lanes_ = 1;             ///< ranks of the smallest node
  std::vector<int> numbers_;  ///< by rank: its number on this node, -1 on others
  Communicator messages_, between_nodes_, lane_;
  std::unique_ptr<Region> region_;
  /// The tree is for all-reduces; `pairs_` does the rest with its order. They leave before the region does.
  std::unique_ptr<Engine> shared_, ring_, tree_, pairs_;
  std::vector<Row> table_;  ///< ascending; the first row begins at 0
};

}  // namespace p3d::comm::detail
