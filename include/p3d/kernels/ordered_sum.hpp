// SPDX-License-Identifier: Apache-2.0
#pragma once
// A reduction of numbers of several ranks in the order of ranks: the same bits wherever it is carried out.

#include <p3d/kernels/common.hpp>

#include <cstdint>

namespace p3d::kernels {

/// The operation of a reduction, element by element.
enum class Combine { sum, max, min };

/// inout[i] becomes ((x_0[i] op x_1[i]) op x_2[i]) op ..., where x_rank is inout and the x_r of the other ranks follow
/// each other in `others`, one in each row. 16-bit numbers are combined in float and rounded once. Reads `ranks`
/// numbers and writes 1 per element.
template <class S>
void combine_in_order(ExecSpace const& exec, Combine op, int rank, View2<S const> others, View1<S> inout);

}  // namespace p3d::kernels
