// SPDX-License-Identifier: Apache-2.0
#pragma once
// The input as it was written, before it means anything: the file and the overrides as entries, each with its place.

#include "config/keys.hpp"

#include <p3d/config/parse.hpp>

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace p3d::config {

/// Collects errors in any order and returns them in reading order: the file's from top to bottom, the command line's
/// from left to right, then the errors of rules between keys.
class KeyErrors {
public:
  /// A place as a number: smaller ones are read first.
  using Order = std::uint64_t;
  static Order in_file(toml::source_position at) { return (Order{at.line} << 24) | at.column; }
  static Order on_command_line(std::size_t index) { return (Order{1} << 62) | index; }
  static Order between_keys() { return Order{1} << 63; }

  void add(Order order, KeyError error) { items_.emplace_back(order, std::move(error)); }
  std::size_t size() const { return items_.size(); }
  std::vector<KeyError> sorted() const;

private:
  std::vector<std::pair<Order, KeyError>> items_;
};

/// One known key that was set. `node` is null when the value could not even be read as TOML.
struct Entry {
  Key const* key = nullptr;
  toml::node const* node = nullptr;
  std::string override_text;       ///< "parallel.tp=4", or "" for an entry of the file
  std::size_t override_index = 0;  ///< position among the overrides

  bool from_file() const { return override_text.empty(); }
};

/// All that was written, and the objects that its entries point into.
struct Input {
  std::string name;      ///< path of the input file, for messages; "" without a file
  std::string folder;    ///< folder of the file, for relative paths
  bool readable = true;  ///< false: the file is not TOML, so nothing is known about its keys
  toml::table document;
  std::list<toml::table> override_values;  // a list, as entries point into its elements
  std::vector<Entry> entries;      ///< the file's, then the overrides in order: a later one for the same key counts
  std::vector<std::string> meant;  ///< keys that were probably meant by unknown ones: their values are unknown

  Input() = default;
  Input(Input const&) = delete;  // not copied, as entries point into the document
  Input& operator=(Input const&) = delete;

  /// The place of a value of `entry`: "input.toml:12:3" or "command line: parallel.tp=4".
  std::string place(Entry const& entry, toml::node const& node) const;
  /// The place of a value of `entry`, for sorting.
  KeyErrors::Order order(Entry const& entry, toml::node const& node) const;
  /// The place of a section's header, "input.toml:4:1", or else of the file, or the command line.
  std::string place_of_section(std::string_view section) const;
};

/// Fills `input` (whose name and folder are set) from the text. Unknown keys and broken TOML go to `errors`.
void read_document(std::string_view text, Input& input, KeyErrors& errors);
/// Adds the overrides to `input`. An override that is no known key=value goes to `errors`.
void read_overrides(std::vector<std::string> const& overrides, Input& input, KeyErrors& errors);

}  // namespace p3d::config
