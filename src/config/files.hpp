// SPDX-License-Identifier: Apache-2.0
#pragma once
// Help for paths of files that are not there.

#include <string>

namespace p3d::config {

/// " (did you mean 'x'?)" when the folder of a missing path holds a similar name, else "".
std::string similar_file(std::string const& path);

}  // namespace p3d::config
