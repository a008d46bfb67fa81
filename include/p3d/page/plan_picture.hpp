// SPDX-License-Identifier: Apache-2.0
#pragma once
// Predicted steps as a picture: a bar for each layout, divided into what the step is spent on.

#include <p3d/plan/search.hpp>

#include <string>
#include <vector>

namespace p3d::page {

/// The picture as a whole SVG file. `cluster` stands in its title.
std::string to_svg(std::vector<plan::PlannedLayout> const& layouts, std::string const& cluster);

}  // namespace p3d::page
