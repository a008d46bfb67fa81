// SPDX-License-Identifier: Apache-2.0
#pragma once
// An activation that all ranks of tp hold, kept in parts: each rank keeps one, in the order of ranks, cut by elements
// (layout::even_share). Parts differ by at most one element.

#include <p3d/parallel/linear.hpp>

namespace p3d::parallel {

/// share [n / tp, rounded up] = this rank's part of whole [n], without a message.
template <class S>
void keep_share(TensorParallel& tp, View1<S const> whole, View1<S> share);

/// whole [n] = the shares of all ranks. It is one all-gather of n, which waits.
template <class S>
void gather_shares(TensorParallel& tp, View1<S const> share, View1<S> whole);

}  // namespace p3d::parallel
