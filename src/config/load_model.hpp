// SPDX-License-Identifier: Apache-2.0
#pragma once
// model.load: the architecture comes from a folder's config.json, as it comes from a preset's row.

#include "config/rules.hpp"

#include <optional>
#include <string>
#include <vector>

namespace p3d::config {

/// The full names of the keys of [model] and of its sections.
std::vector<std::string> model_keys();

/// Sets all of config.model where model.load names a folder, and returns what the folder says. A file that cannot be
/// used is an error. To be called before the entries are applied.
std::optional<Model> apply_load(Input const& input, Config& config, Sources& sources, KeyErrors& errors);

/// Refuses keys of [model] that were written besides model.load and do not agree with the folder. seq_len may be
/// smaller, or larger with rotary positions; dropout is free, and so are the keys that balance and dispatch experts.
/// Blocks of multi-token prediction may be left out.
void check_load(Check const& check, Model const& loaded);

}  // namespace p3d::config
