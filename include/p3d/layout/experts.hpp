// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exchange of a mixture-of-experts layer as arithmetic: which rank computes which rows. Plain integers, the same on
// every rank that is given the same counts.
//
// Each token goes to top_k experts, as a row for each. The experts are distributed over ep groups of etp ranks, and
// each rank of a group has a part of every expert of its group; so a row goes to etp ranks, and the sum of their
// results is its result. A rank has room for a bounded number of rows: where more would come, all ranks go through the
// exchange in several passes, each with an equal part of every message. No row is ever dropped.

#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <vector>

namespace p3d::layout {

/// The ranks that exchange rows, in the order of their communicator (along ep and etp).
struct ExpertGroup {
  int experts = 1;  ///< experts of a layer; ep divides the number
  int ep = 1, etp = 1;
  std::vector<int> ep_of{0};  ///< coordinate along ep of each rank of the group
  int size() const { return static_cast<int>(ep_of.size()); }
  int local_experts() const { return experts / ep; }
  /// The experts of a rank of the group.
  Range experts_of(int rank) const;
};

/// The group of a rank of the mesh, for a layer of so many experts.
ExpertGroup expert_group(RankGrid const& grid, int rank, int experts);
/// True when the ranks of such a group differ along an axis; all groups of the mesh are alike in this.
bool exchanges_across(RankGrid const& grid, Axis axis);

/// The exchange of one layer and microbatch, as one rank sees it. Rows have three orders. A rank's own rows are in the
/// order (expert, token, choice); the rows that it receives in a pass in the order (sender, expert, ...); the rows that
/// its experts compute in the order (expert, sender, ...).
class ExpertDispatch {
public:
  /// `counts[r * experts + e]` is the number of rows of rank r for expert e. `most_rows` is the room of each rank, at
  /// least one row for each rank of the group.
  ExpertDispatch(ExpertGroup const& group, int rank, std::vector<std::int64_t> counts, std::int64_t most_rows);

  /// The number of passes: at least one, the same on all ranks.
  int passes() const { return passes_; }
  /// The number of rows that this rank's experts have in a pass.
  std::int64_t rows(int pass) const;
  /// The number of rows that this rank's experts have in all passes.
  std::int64_t all_rows() const;
  /// The rank's own rows that go to rank `to` in a pass; the same for all ranks with one coordinate along ep.
  Range sent_to(int pass, int to) const;
  /// The place of the rows from rank `from` among the received rows.
  Range received_from(int pass, int from) const;
  /// The first row of each expert in the experts' order, and the end: local_experts() + 1 numbers.
  std::vector<std::int64_t> offsets(int pass) const;
  /// For each row in the experts' order, its number among the received rows.
  std::vector<int> received_order(int pass) const;

private:
  /// The rows of rank `from` for one expert that a pass carries.
  Range part(int pass, int from, int expert) const;
  /// The rows of rank `from` for the experts of rank `to` that a pass carries.
  Range share(int pass, int from, int to) const;
  /// The number of rows of rank `from` for some experts.
  std::int64_t count(int from, Range experts) const;

  ExpertGroup group_;
  int rank_;
  std::vector<std::int64_t> counts_;
  int passes_ = 1;
};

}  // namespace p3d::layout
