// SPDX-License-Identifier: Apache-2.0
#pragma once
// The search for the first tensor, in model order, that holds NaN or infinity: for the error of a step whose loss or
// norm is not finite, and before weights are kept in a checkpoint.

#include <string>

#include "rank_memory.hpp"

namespace p3d::engine {

/// The numbers that are searched besides the weights: none, the gradients that the reduction of this step has left, or
/// those of an earlier step that wait for their norm.
enum class SearchedGradients { none, reduced, held };

/// The first tensor in model order with elements that are not finite.
struct NotFinite {
  bool found = false;
  bool in_weights = false;  ///< one of the weights, which come before all gradients
  std::string text;         ///< name and number of elements; where none was found, that it was not
};

/// Looks through what the ranks own. A weight counts as infinite, too, where rounding to the type that layers read
/// makes it so: 65520 and more in fp16. The same result on every rank; collective.
template <class P>
NotFinite find_not_finite(RankContext& rank, RankMemory<P>& memory, SearchedGradients gradients);

}  // namespace p3d::engine
