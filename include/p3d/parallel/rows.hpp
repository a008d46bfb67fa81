// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequence parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2): between the GEMMs of a layer the rows of
// an activation are divided over tp. Rank r has the rows [N r / tp, N (r + 1) / tp) of N, without padding. The input of
// a column-parallel linear is all-gathered, the output of a row-parallel one is reduce-scattered; gradients go the
// other way. An all-reduce consists of both, so the bytes are those of tensor parallelism alone.
//
// Example: N = 10 rows on tp = 4 are divided into 2, 3, 2 and 3 rows.
//
// Without sequence parallelism (TensorParallel::sequence is false) every rank has all rows, nothing is gathered, and
// sums are all-reduces.

#include <p3d/parallel/linear.hpp>

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

/// All rows of an activation. The view may be read once `arrival` is complete.
template <class S>
struct WholeRows {
  View2<S const> view;
  comm::Request arrival;
  View2<S const> wait() {
    arrival.wait();
    return view;
  }
};

/// Starts to gather the rows `own` of each rank into `whole` [N, columns]; `own` may lie at its place there already. It
/// is one all-gather of N x columns; without sequence parallelism it is nothing, and the result's view is `own`.
template <class S>
WholeRows<S> start_gather_rows(TensorParallel& tp, View2<S const> own, View2<S> whole);

/// Starts the sum over tp of `parts` [N, columns], in place: wait for it before reading own_rows(tp, parts). Other rows
/// are unspecified then. It is one reduce-scatter of N x columns; without sequence parallelism an all-reduce, with the
/// same bits.
template <class S>
comm::Request start_sum_rows(TensorParallel& tp, View2<S> parts);

}  // namespace p3d::parallel
