// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequence parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2): between the GEMMs of a layer the rows of
// an activation are divided over tp. Of N rows rank r has [N r / tp, N (r + 1) / tp), nothing padded. What goes into a
// column-parallel linear is gathered, what comes out of a row-parallel one is reduce-scattered; so are the gradients,
// the other way. An all-reduce is both: the bytes are those of tensor parallelism alone.
//
// Without it (TensorParallel::sequence) every rank has all rows, nothing is gathered, and sums are all-reduces.

#include <p3d/parallel/linear.hpp>

namespace p3d::parallel {

/// The rows of this rank: a part of `whole`, [its rows, columns].
template <class T>
View2<T> own_rows(TensorParallel const& tp, View2<T> whole) {
  if (!tp.sequence || whole.data() == nullptr) return whole;
  auto const share = layout::even_share(static_cast<std::int64_t>(whole.extent(0)), tp.size(), tp.rank());
  return device::rows(whole, share.begin, share.end);
}

/// The same of what kernels are told of them.
kernels::TokenRows own_rows(TensorParallel const& tp, kernels::TokenRows rows);

/// All rows of an activation. The view may be read after `arrival`.
template <class S>
struct WholeRows {
  View2<S const> view;
  comm::Request arrival;
  View2<S const> wait() {
    arrival.wait();
    return view;
  }
};

/// Starts to gather the rows `own` of each rank into `whole` [N, columns]; `own` may lie at its place there. One
/// all-gather of N x columns, or nothing: then the view is `own`.
template <class S>
WholeRows<S> start_gather_rows(TensorParallel& tp, View2<S const> own, View2<S> whole);

/// Starts the sum over tp of `parts` [N, columns], in place: wait for it before reading own_rows(tp, parts). What other
/// rows hold is unspecified then. One reduce-scatter of N x columns, or an all-reduce, with the same bits.
template <class S>
comm::Request start_sum_rows(TensorParallel& tp, View2<S> parts);

}  // namespace p3d::parallel
