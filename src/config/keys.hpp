// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of all keys: the one place that knows a key's section, name, type, range, default, help and member.
// Parsing, the search for unknown keys, the canonical dump and the help all read it.

#include "config/values.hpp"

#include <p3d/config/config.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// A row of the table: one key of the input.
struct Key {
  std::string section;
  std::string name;
  std::string type;  ///< its type for people: "integer >= 1"
  std::string default_text;
  std::string help;  ///< one line, no full stop
  /// Stores a value, or says why not and leaves the Config as it was. Relative paths are resolved against `folder`.
  std::function<MaybeMismatch(toml::node const& node, std::string const& folder, Config& config)> read;
  /// Returns the value as TOML.
  std::function<std::string(Config const& config)> write;

  /// The name with its section: "model.hidden".
  std::string full() const { return section + "." + name; }
  /// The text of an error about what a value must be: its type, and the help where both fit on two lines of a terminal.
  std::string expected() const { return type.size() + help.size() <= 160 ? type + " (" + help + ")" : type; }
};

/// Adds the keys of [model].
void add_model(std::vector<Key>& table);
/// Adds the keys of [model.mla].
void add_mla(std::vector<Key>& table);
/// Adds the keys of [model.mtp].
void add_mtp(std::vector<Key>& table);
/// Adds the keys of [model.moe].
void add_moe(std::vector<Key>& table);
/// Adds the keys of [pipeline].
void add_pipeline(std::vector<Key>& table);
/// Adds the keys of [linalg].
void add_linalg(std::vector<Key>& table);
/// Adds the keys of [memory].
void add_memory(std::vector<Key>& table);
/// Adds the key data.source.
void add_data_sources(std::vector<Key>& table);

/// All keys, in the order of the structs, so that a section's keys are neighbours.
std::vector<Key> const& keys();
/// The key of a full name "section.name"; null when there is none.
Key const* find_key(std::string_view full);
/// The names of the sections, in the order of the table. "model.moe" is a section of its own.
std::vector<std::string> const& sections();
/// The names (without section) of a section's keys.
std::vector<std::string> keys_of(std::string_view section);

/// An absolute path without ".", ".." or a slash at the end; `folder` "" is the current directory.
std::string absolute_path(std::string const& path, std::string const& folder);

}  // namespace p3d::config
