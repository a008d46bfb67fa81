// SPDX-License-Identifier: Apache-2.0
#pragma once
// Timelines of pipeline schedules, measured or simulated, as pictures.

#include <p3d/schedule/timeline.hpp>

#include <string>
#include <vector>

namespace p3d::page {

/// Timelines below one another, with one time axis, as SVG: ranks down, time across; forward, input and weight part,
/// whole backward and waiting are told apart by colour, by lightness and by hatching, so that the picture can be read
/// in black and white. `title`: a line above all, or "". `time_unit`: "s" chooses s, ms or us by size; any other text
/// is printed as it is ("f" for multiples of a forward).
std::string to_svg(std::vector<schedule::Timeline> const& timelines, std::string const& title = "",
                   std::string const& time_unit = "s");

}  // namespace p3d::page
