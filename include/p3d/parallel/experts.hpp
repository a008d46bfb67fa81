// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of a mixture-of-experts layer on their way to the ranks of their experts and back (layout/experts.hpp says
// which). Messages of one pass, of T = k n rows of width h on each rank, balanced: to experts (g - 1) / g etp T h
// numbers sent by a rank of a group of g = ep etp, and as many back; etp = 1: (ep - 1) / ep T h. Counts before: experts
// integers from each rank. Dispatch by all-gather sends T' h numbers to each other rank, of the T' = T / k tokens, and
// as many back.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/experts.hpp>
#include <p3d/parallel/linear.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace p3d::parallel {

/// The ranks that share the experts of a layer. `comm` must outlive it; null: one rank.
class ExpertParallel {
public:
  ExpertParallel() = default;
  ExpertParallel(comm::Communicator* comm, layout::ExpertGroup group);
  layout::ExpertGroup const& group() const { return group_; }
  int rank() const { return comm_ ? comm_->rank() : 0; }
  int size() const { return group_.size(); }

  /// The exchange of rows of which this rank has counts[e] for each expert. One all-gather of the counts.
  layout::ExpertDispatch plan(std::vector<std::int64_t> const& counts, std::int64_t most_rows);

  /// Messages on their way: comm::wait_all() ends them. Until then their rows are not touched.
  using Requests = std::vector<comm::Request>;
  /// Rows of a pass: `own` in the order of the rank's own rows, `received` in that of received ones. T: any type that
  /// travels (collectives.hpp).
  template <class T>
  Requests start_to_experts(ExecSpace const& exec, layout::ExpertDispatch const& dispatch, int pass, View2<T const> own,
                            View2<T> received);
  /// The way back, of results in the order of received rows. `own` has etp blocks of `own_rows` rows: results of each
  /// rank of etp; the rows of other passes are left as they are.
  template <class T>
  Requests start_to_tokens(ExecSpace const& exec, layout::ExpertDispatch const& dispatch, int pass,
                           View2<T const> received, std::int64_t own_rows, View2<T> own);

  /// Dispatch by all-gather. Integers of all ranks, at most `most` of each (the same number on all): `count` of rank r,
  /// which are the first of values[r * most] on; -1 behind them.
  struct SharedIntegers {
    std::vector<std::int64_t> count;
    std::vector<int> values;
  };
  SharedIntegers share_choices(std::vector<int> const& own, std::int64_t most);
  /// Rows of all ranks, `rows[r]` of rank r, into the r-th of size() equal blocks of `all`.
  template <class T>
  Requests start_share(ExecSpace const& exec, std::vector<std::int64_t> const& rows, View2<T const> own, View2<T> all);
  /// The way back: the r-th block of `all` to rank r; what rank r has for this rank, into the r-th block of `blocks`.
  template <class T>
  Requests start_collect(ExecSpace const& exec, std::vector<std::int64_t> const& rows, View2<T const> all,
                         View2<T> blocks);

  /// Seconds that this rank has waited for messages.
  double wait_seconds() const { return comm_ ? comm_->accounting().wait_seconds : 0.0; }
  /// Bytes that this rank has sent.
  std::int64_t sent_bytes() const { return comm_ ? comm_->accounting().sent.messages : 0; }

private:
  comm::Communicator* comm_ = nullptr;
  layout::ExpertGroup group_{};
  std::vector<int> etp_of_{0};  ///< by rank: its place among the ranks of the same experts
};

/// The communicators over which the tokens of a sample are divided, those of neighbouring tokens first. They must
/// outlive it.
class SampleRanks {
public:
  SampleRanks() = default;
  explicit SampleRanks(std::vector<comm::Communicator*> comms) : comms_(std::move(comms)) {}
  /// Sums of counts over these ranks: an all-reduce each.
  void sum(std::vector<std::int64_t>& counts) const;
  /// The counts of those whose tokens come before this rank's: an all-gather each.
  std::vector<std::int64_t> before(std::vector<std::int64_t> counts) const;

private:
  std::vector<comm::Communicator*> comms_;
};

/// Numbers of each token become their sums over tp.
template <class T>
void sum_over(TensorParallel& tp, View1<T> numbers);

}  // namespace p3d::parallel
