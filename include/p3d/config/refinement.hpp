// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two factorisations of the ranks of a pipeline stage: tp x cp x dp for the dense weights, etp x ep x edp for the
// experts. Both count the same ranks in mixed radix, fastest axis first. Their common refinement is a list of atoms
// such that every axis of either is a set of them. It exists when the partial products of both, sorted, divide each
// other. Example: tp 4, dp 4 and etp 1, ep 8: partial products 1, 4, 8, 16, so atoms 4, 2, 2.

#include <p3d/config/axes.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace p3d::config {

/// One dimension of the mesh, a part of a dense axis and of an expert axis.
struct Atom {
  std::string name;  ///< "tp"; where an axis has several "dp0", "dp1", fastest first
  int size = 1;
  int stride = 1;  ///< distance of ranks that are neighbours along it
  AxisSet axes;    ///< the dense axis and, unless it is pp or of size 1, the expert axis that it is a part of
};

/// The sizes, completed by the expert axis that has no key (edp): it gets the remaining factor of the stage's ranks; 0
/// when there is no whole one.
PerAxis with_rest(PerAxis sizes);

/// The axes of a kind without pp, fastest first: dense axes as in `order` (complete), expert axes at their places in
/// it.
std::vector<Axis> stage_order(AxisKind kind, std::vector<Axis> const& order);

/// The atoms of the mesh, fastest first: at least one for every dense axis, and the one of pp at its place in the
/// order. Nothing when the sizes (completed by with_rest) have no refinement. `order` names every dense axis.
std::optional<std::vector<Atom>> refine(PerAxis const& sizes, std::vector<Axis> const& order);

/// A condition on sizes besides the refinement: they divide the experts. Empty: no condition. It must hold where all
/// expert axes are 1.
using SizesFit = std::function<bool(PerAxis const& sizes)>;

/// The nearest sizes of one expert axis, below and above, with which there is a refinement; the other axes keep theirs.
std::vector<int> nearest_sizes(Axis axis, PerAxis sizes, std::vector<Axis> const& order, SizesFit const& fit = {});

/// A text that says what to change in a layout without a refinement: "set parallel.ep to 4 or 8, or parallel.etp to 2".
std::string nearest_layouts(PerAxis const& sizes, std::vector<Axis> const& order, SizesFit const& fit = {});

}  // namespace p3d::config
