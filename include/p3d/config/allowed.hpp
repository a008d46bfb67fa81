// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rules between keys, for a configuration that a program changed after it was read. The choice that memory.limit
// makes asks them for every candidate.

#include <p3d/config/config.hpp>

namespace p3d::config {

/// Returns true when the rules between the keys of the model, its layout and [memory] accept this configuration, as
/// they would if an input had all of its values. Rules about the data and the checkpoint are left out: no file is
/// opened.
bool allowed(Config const& config);

}  // namespace p3d::config
