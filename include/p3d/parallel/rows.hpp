// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequence parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2): between the GEMMs of a layer the rows of
// an activation are divided over tp. Rank r has the rows [N r / tp, N (r + 1) / tp) of N, without padding. The input of
// a column-parallel linear is all-gathered, the output of a row-parallel one is reduce-scattered; gradients go the
// other way. An all-reduce consists of both, so the bytes are those of tensor parallelism alone.
//
// Example: N = 10 rows on tp = 4 are divided into 2, 3, 2 and 3 rows.
//
// A message may go in chunks (TpOverlap), so that one travels beside the GEMM of another. Chunk k has the k-th slice of
// every rank's rows, so each rank sends and receives in all of them. Example: N = 16 on tp = 2 in 2 chunks: rows 0 to 3
// and 8 to 11, then rows 4 to 7 and 12 to 15. The memory, the bytes and the order of sums are those of one message.
//
// Without sequence parallelism (TensorParallel::sequence is false) every rank has all rows, nothing is gathered, and
// sums are all-reduces, whose chunks are runs of rows.

#include <p3d/kernels/common.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/parallel/tensor_parallel.hpp>

#include <utility>
#include <vector>

namespace p3d::parallel {

/// The numbers of this rank's rows, of n.
inline layout::Range own_range(TensorParallel const& tp, std::int64_t n) {
  return tp.sequence ? layout::even_share(n, tp.size(), tp.rank()) : layout::Range{0, n};
}

/// The rows of this rank, a part of `whole`: [its rows, columns].
template <class T>
View2<T> own_rows(TensorParallel const& tp, View2<T> whole) {
  if (!tp.sequence || whole.data() == nullptr) return whole;
  auto const share = own_range(tp, static_cast<std::int64_t>(whole.extent(0)));
  return device::rows(whole, share.begin, share.end);
}

/// The tokens of this rank's rows, from the description of all rows.
kernels::TokenRows own_rows(TensorParallel const& tp, kernels::TokenRows rows);

/// How the rows of one message over tp are cut.
class RowChunks {
public:
  /// `count` chunks of n rows.
  RowChunks(TensorParallel const& tp, std::int64_t n, int count) : tp_(&tp), n_(n), count_(count) {}
  /// As many chunks as TpOverlap allows for a message of n rows with `row_bytes` each. It is the same on all ranks.
  static RowChunks usual(TensorParallel const& tp, std::int64_t n, std::int64_t row_bytes);

  int count() const { return count_; }
  /// The rows of chunk k, in ascending order: under sequence parallelism a range for each rank, else one range.
  std::vector<layout::Range> rows(int k) const;

private:
  TensorParallel const* tp_;
  std::int64_t n_;
  int count_;
};

/// Messages over tp with the rows of one matrix: one for all rows, or one for each chunk. Each ends in a wait. Where
/// TpOverlap says so, the first wait gives the turn to another strand, whether the messages have arrived or not:
/// strands so interleave alike on all ranks of a stage, and so do their collectives.
class RowMessages {
public:
  RowMessages() = default;
  explicit RowMessages(TensorParallel const& tp) : gives_turn_(tp.overlap.microbatch) {}
  void add(comm::Request request) { requests_.push_back(std::move(request)); }
  /// The number of messages that were started; 0: there was nothing to send.
  int count() const { return static_cast<int>(requests_.size()); }
  /// True while one of them may be under way.
  bool active() const;
  /// Waits for chunk k.
  void wait(int k) {
    give_turn();
    requests_[static_cast<std::size_t>(k)].wait();
  }
  /// Waits for all.
  void wait() {
    give_turn();
    comm::wait_all(requests_);
  }

private:
  void give_turn();

  bool gives_turn_ = false;
  std::vector<comm::Request> requests_;
};

/// All rows of an activation. The view may be read once `arrival` is complete.
template <class S>
struct WholeRows {
  View2<S const> view;
  RowMessages arrival;
  View2<S const> wait() {
    arrival.wait();
    return view;
  }
};

/// The number of messages that a gather of rows is. GEMMs that take rows as they come (linear.hpp) want chunks,
/// where TpOverlap allows them.
enum class Gather { whole, in_chunks };

/// Starts to gather the rows `own` of each rank into `whole` [N, columns]; `own` may lie at its place there already. It
/// is an all-gather of N x columns; without sequence parallelism it is nothing, and the result's view is `own`.
template <class S>
WholeRows<S> start_gather_rows(TensorParallel& tp, View2<S const> own, View2<S> whole, Gather how = Gather::whole);

/// Starts the sum over tp of `parts` [N, columns], in place: wait for it before reading own_rows(tp, parts). Other rows
/// are unspecified then. It is one reduce-scatter of N x columns; without sequence parallelism an all-reduce, with the
/// same bits.
template <class S>
RowMessages start_sum_rows(TensorParallel& tp, View2<S> parts);
/// Starts the sum over tp of chunk k of `parts`. The other chunks may be written meanwhile.
template <class S>
comm::Request start_sum_rows(TensorParallel& tp, View2<S> parts, RowChunks const& chunks, int k);

}  // namespace p3d::parallel
