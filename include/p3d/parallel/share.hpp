// SPDX-License-Identifier: Apache-2.0
#pragma once
// An activation that all ranks of tp hold, kept in equal parts: each rank has one, in order of rank, cut by elements.

#include <p3d/parallel/linear.hpp>

namespace p3d::parallel {

/// share [n / tp] = this rank's part of whole [n]. No message.
template <class S>
void keep_share(TensorParallel& tp, View1<S const> whole, View1<S> share);

/// whole [n] from the shares of all ranks. One all-gather of n.
template <class S>
void gather_shares(TensorParallel& tp, View1<S const> share, View1<S> whole);

}  // namespace p3d::parallel
