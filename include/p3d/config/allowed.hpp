// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rules between keys, for a configuration that a program changed after it was read.

#include <p3d/config/config.hpp>

namespace p3d::config {

/// True when the rules between the keys of the model, its layout and [memory] let this configuration be, as they would
/// if an input had all of its values. Rules about the data and the checkpoint are left out: no file is opened.
bool allowed(Config const& config);

}  // namespace p3d::config
