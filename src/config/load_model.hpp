// SPDX-License-Identifier: Apache-2.0
#pragma once
// model.load: the architecture comes from a folder's config.json, as from a preset.

#include "config/rules.hpp"

#include <optional>
#include <string>
#include <vector>

namespace p3d::config {

/// The full names of the keys of [model] and of its sections.
std::vector<std::string> model_keys();

/// Sets all of config.model where model.load names a folder, and returns what the folder says. A file that cannot be
/// used is an error. Before the entries are applied.
std::optional<Model> apply_load(Input const& input, Config& config, Sources& sources, KeyErrors& errors);

/// Keys that were written besides must agree; seq_len may be smaller, or larger with rotary positions, and dropout is
/// free, as is what balances and dispatches experts.
void check_load(Check const& check, Model const& loaded);

}  // namespace p3d::config
