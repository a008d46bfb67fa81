// SPDX-License-Identifier: Apache-2.0
#pragma once
// The groups of ranks that training makes communicators of, as sets of axes.

#include <p3d/layout/axes.hpp>
#include <p3d/layout/params.hpp>

#include <vector>

namespace p3d::layout {

/// The ranks that together hold a parameter once: over these its pieces are put together. `divided`: replicas own parts
/// of it.
AxisSet gather_axes(ParamSpec const& spec, bool divided);

/// The axes along which ranks exchange rows of experts: ep and etp, where they have more than one rank.
AxisSet expert_exchange_axes(PerAxis const& sizes);

/// The axes over which the vocabulary is divided, where it is divided over the pipeline.
AxisSet vocabulary_axes(PerAxis const& sizes);

/// The groups that training makes communicators of, by their axes: what the layers and the schedule need, then what the
/// parameters need, without axes of one rank (so that equal groups are one). `divided`: replicas own parts of the
/// state. `compressed`: gradients are summed over the other axes first, then over dp.
std::vector<AxisSet> communicator_sets(ParamTable const& table, PerAxis const& sizes, bool divided, bool compressed);

}  // namespace p3d::layout
