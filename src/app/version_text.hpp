// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace p3d::app {

/// The text of `p3d --version`: what was built, with what, and the libraries that are loaded now.
std::string version_text();

}  // namespace p3d::app
