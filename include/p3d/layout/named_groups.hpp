// SPDX-License-Identifier: Apache-2.0
#pragma once
// The groups of ranks under the names that Megatron Core gives them. Example: "dp_cp" is the group of ranks that differ
// along dp and cp, over which the gradients of dense weights are summed.

#include <p3d/layout/axes.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::layout {

/// A set of axes with a name.
struct NamedGroup {
  std::string name;  ///< "tp_dp"
  AxisSet axes;
};

/// Every axis by its own name, then Megatron Core's names of sets of axes. Two names may stand for the same axes:
/// "ep_tp" is etp, and "ep_dp" is edp.
std::vector<NamedGroup> const& named_groups();

/// The axes of a name. Throws base::Error, with all names, for another name.
AxisSet group_axes(std::string_view name);

/// A mesh from the sizes of its axes: dp and edp are not read from `sizes`,
/// but follow from `num_ranks`. `order` is that of parallel.order; empty: its default. Throws base::Error when the
/// sizes do not divide the ranks.
RankGrid grid_of(PerAxis sizes, int num_ranks, std::string_view order = {});

}  // namespace p3d::layout
