// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables and files of the layouts that `p3d plan` found.

#include <p3d/config/cluster.hpp>
#include <p3d/plan/search.hpp>

#include <string>
#include <vector>

namespace p3d::app {

/// Layouts as a table, in their order.
std::string layout_table(std::vector<plan::PlannedLayout> const& layouts, config::Cluster const& cluster);
/// The best layout of each of several numbers of ranks, with the speed per rank over that of the first.
std::string scaling_table(std::vector<plan::PlannedLayout> const& layouts, config::Cluster const& cluster);
/// Layouts as CSV: a column for each key of the layout, then seconds, interval, memory, and seconds of each part. The
/// keys are those of `p3d plan grade`, so that the file can take measured times, too.
std::string layout_csv(std::vector<plan::PlannedLayout> const& layouts, config::Cluster const& cluster);

/// A cluster of which constants were changed: "level2.bandwidth=2x" or "device.memory=1.4e11".
config::Cluster changed(config::Cluster cluster, std::string const& change);

}  // namespace p3d::app
