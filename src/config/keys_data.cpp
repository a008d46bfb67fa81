// SPDX-License-Identifier: Apache-2.0
// The key data.source: a list of tables.

#include "config/section.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

namespace p3d::config {

namespace {

/// Reads one table of the list.
MaybeMismatch read_source(toml::node const& node, std::string const& folder, DataSource& out) {
  auto const* table = node.as_table();
  if (table == nullptr) {
    return Mismatch{&node, describe(node) + " in the list", "write {path = \"...\", weight = 1.0} for each source"};
  }
  bool has_path = false;
  for (auto const& [key, value] : *table) {
    std::string const name(key.str());
    MaybeMismatch mismatch;
    if (name == "path") {
      has_path = true;
      mismatch = read_string(value, false, out.path);
      if (!mismatch) out.path = absolute_path(out.path, folder);
    } else if (name == "weight") {
      mismatch = read_number(value, {.max = 1e18, .min_open = true}, out.weight);
    } else {
      auto const close = base::nearest(name, {"path", "weight"});
      return Mismatch{
          &value, fmt::format("the key {} of a source", toml_string(name)),
          close.empty() ? "remove it: a source has path and weight" : fmt::format("did you mean {}?", close)};
    }
    if (mismatch) {
      mismatch->found = fmt::format("{} as {} of a source", mismatch->found, name);
      return mismatch;
    }
  }
  if (!has_path) return Mismatch{&node, "a source without path", "add path = \"...\" to it"};
  return {};
}

/// Reads data.source.
MaybeMismatch read_sources(toml::node const& node, std::string const& folder, Config& config) {
  auto const* list = node.as_array();
  if (list == nullptr) {
    return Mismatch{&node, describe(node),
                    node.is_table() ? "write [[data.source]], in double brackets, for each source"
                                    : "write [[data.source]] for each source, path and weight below it"};
  }
  std::vector<DataSource> sources;
  for (auto const& element : *list) {
    if (auto mismatch = read_source(element, folder, sources.emplace_back())) return mismatch;
  }
  config.data.source = std::move(sources);
  return {};
}

}  // namespace

void add_data_sources(std::vector<Key>& table) {
  Section<Data> s(table, "data", &Config::data);
  s.add("source", "list of tables, each with path (string) and weight (number > 0)",
        "instead of path: several sources, and their shares of the samples over the sum of the weights", nullptr,
        read_sources, [](Config const& config) {
          std::vector<std::string> tables;
          for (auto const& source : config.data.source)
            tables.push_back(fmt::format("{{path = {}, weight = {}}}", toml_string(absolute_path(source.path, "")),
                                         toml_float(source.weight)));
          return '[' + base::join(tables) + ']';
        });
}

}  // namespace p3d::config
