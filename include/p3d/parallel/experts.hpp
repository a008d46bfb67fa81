// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exchange of rows of a mixture-of-experts layer between the ranks of the tokens and the ranks of their experts
// (layout/experts.hpp says which). Messages of one pass, of T = k n rows of width h on each rank, balanced: to experts,
// a rank of a group of g = ep etp sends (g - 1) / g etp T h numbers, and as many back; with etp = 1 these are (ep - 1)
// / ep T h. Before that each rank sends its counts, one integer for each expert. Dispatch by all-gather sends T' h
// numbers to each other rank, of the T' = T / k tokens, and as many back.
//
// Example: ep = 4, etp = 1, n = 1024 tokens with k = 2 choices: each rank sends 3/4 of its 2048 rows and keeps 1/4.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/experts.hpp>
#include <p3d/parallel/linear.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace p3d::parallel {

/// The ranks that share the experts of a layer. `comm` must outlive this object; null means one rank.
class ExpertParallel {
public:
  ExpertParallel() = default;
  ExpertParallel(comm::Communicator* comm, layout::ExpertGroup group);
  layout::ExpertGroup const& group() const { return group_; }
  int rank() const { return comm_ ? comm_->rank() : 0; }
  int size() const { return group_.size(); }
  /// The number of this rank among those that each have a part of the same experts (its coordinate along etp).
  int copy() const { return etp_of_[static_cast<std::size_t>(rank())]; }

  /// Plans the exchange of rows, from the number counts[e] of rows that this rank has for each expert. It takes one
  /// all-gather of the counts. `most_rows` is the number of rows that each rank has memory for.
  layout::ExpertDispatch plan(std::vector<std::int64_t> const& counts, std::int64_t most_rows);

  /// Messages under way; comm::wait_all() ends them. Until then their rows must not be touched.
  using Requests = std::vector<comm::Request>;
  /// Starts to send the rows of a pass to their experts. `own` is in the order of the rank's own rows, `received` in
  /// that of received rows. T is any type that collectives.hpp sends.
  template <class T>
  Requests start_to_experts(ExecSpace const& exec, layout::ExpertDispatch const& dispatch, int pass, View2<T const> own,
                            View2<T> received);
  /// Starts to send the experts' results back to the tokens, in the order of received rows. `own` has etp blocks of
  /// `own_rows` rows, one for the results of each rank of etp; rows of other passes are left alone.
  template <class T>
  Requests start_to_tokens(ExecSpace const& exec, layout::ExpertDispatch const& dispatch, int pass,
                           View2<T const> received, std::int64_t own_rows, View2<T> own);

  /// Integers of all ranks, for dispatch by all-gather. Rank r has count[r] integers, from values[r * most] on, and -1
  /// behind them up to `most`.
  struct SharedIntegers {
    std::vector<std::int64_t> count;
    std::vector<int> values;
  };
  /// Gathers the integers of all ranks, at most `most` of each; `most` is the same on all ranks. It waits.
  SharedIntegers share_choices(std::vector<int> const& own, std::int64_t most);
  /// Starts to copy the rows of every rank to all ranks: rows[r] rows of rank r go to the r-th of size() equal blocks
  /// of `all`.
  template <class T>
  Requests start_share(ExecSpace const& exec, std::vector<std::int64_t> const& rows, View2<T const> own, View2<T> all);
  /// Starts to send results back: the r-th block of `all` goes to rank r, and the results that rank r has for this rank
  /// come into the r-th block of `blocks`.
  template <class T>
  Requests start_collect(ExecSpace const& exec, std::vector<std::int64_t> const& rows, View2<T const> all,
                         View2<T> blocks);

  /// Seconds that this rank has waited for messages of the group.
  double wait_seconds() const { return comm_ ? comm_->accounting().wait_seconds : 0.0; }
  /// Bytes that this rank has sent in the group.
  std::int64_t sent_bytes() const { return comm_ ? comm_->accounting().sent.messages : 0; }

private:
  comm::Communicator* comm_ = nullptr;
  layout::ExpertGroup group_{};
  std::vector<int> etp_of_{0};  ///< one for each rank: its number among the ranks of the same experts
};

/// The communicators over which the tokens of a sample are divided, that of neighbouring tokens first. They must
/// outlive this object.
class SampleRanks {
public:
  SampleRanks() = default;
  explicit SampleRanks(std::vector<comm::Communicator*> comms) : comms_(std::move(comms)) {}
  /// Sums counts over these ranks, by one all-reduce for each communicator.
  void sum(std::vector<std::int64_t>& counts) const;
  /// The sums of counts over the ranks whose tokens come before this rank's, by one all-gather for each communicator.
  std::vector<std::int64_t> before(std::vector<std::int64_t> counts) const;

private:
  std::vector<comm::Communicator*> comms_;
};

/// Sums numbers of each token over tp, by an all-reduce that waits.
template <class T>
void sum_over(TensorParallel& tp, View1<T> numbers);

}  // namespace p3d::parallel
