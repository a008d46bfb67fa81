// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who computes which rows of a mixture-of-experts layer: integers alone, the same on every rank that is given the same
// counts.
//
// Each token goes to top_k experts: a row for each. The experts are dealt to ep groups of etp ranks, each of which has
// a part of its group's experts; so a row goes to etp ranks, and the sum of what comes back is its result. A rank has
// room for a bounded number of rows: where more would come, all ranks go through the exchange in several passes, each
// with an equal part of every message. No row is ever dropped.

#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <vector>

namespace p3d::layout {

/// The ranks that exchange rows, in the order of their communicator (along ep and etp).
struct ExpertGroup {
  int experts = 1;  ///< of the model's layer; ep divides them
  int ep = 1, etp = 1;
  std::vector<int> ep_of{0};  ///< by rank of the group: its coordinate along ep
  int size() const { return static_cast<int>(ep_of.size()); }
  int local_experts() const { return experts / ep; }
  /// The experts of a rank.
  Range experts_of(int rank) const;
};

/// The group of a rank of the mesh.
ExpertGroup expert_group(RankGrid const& grid, int rank, int experts);
/// Whether the ranks of such a group differ along an axis; in every group of the mesh, if in one.
bool exchanges_across(RankGrid const& grid, Axis axis);

/// The exchange of one layer and microbatch, as one rank sees it. A rank's own rows are numbered in the order (expert,
/// token, choice); rows that it receives in a pass in the order (sender, expert, ...); those that its experts compute
/// in the order (expert, sender, ...).
class ExpertDispatch {
public:
  /// `counts[r * experts + e]`: rows of rank r for expert e. `most_rows`: room of each rank, at least one row for each
  /// rank of the group.
  ExpertDispatch(ExpertGroup const& group, int rank, std::vector<std::int64_t> counts, std::int64_t most_rows);

  /// At least one, the same on all ranks.
  int passes() const { return passes_; }
  /// Rows that this rank's experts have in a pass, and of all passes.
  std::int64_t rows(int pass) const;
  std::int64_t all_rows() const;
  /// The rank's own rows that go to rank `to`; the same for all ranks of one coordinate along ep.
  Range sent_to(int pass, int to) const;
  /// Where rows from rank `from` lie among those received.
  Range received_from(int pass, int from) const;
  /// [local experts + 1]: the rows of each expert, in the experts' order.
  std::vector<std::int64_t> offsets(int pass) const;
  /// [rows]: for each row in the experts' order its number among those received.
  std::vector<int> received_order(int pass) const;

private:
  /// Rows of `from` for one expert in a pass.
  Range part(int pass, int from, int expert) const;
  /// Of the rows of `from` for the experts of `to` those of a pass.
  Range share(int pass, int from, int to) const;
  std::int64_t count(int from, Range experts) const;

  ExpertGroup group_;
  int rank_;
  std::vector<std::int64_t> counts_;
  int passes_ = 1;
};

}  // namespace p3d::layout
