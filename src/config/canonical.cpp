// SPDX-License-Identifier: Apache-2.0
// The complete input as text, and its hash. Every writer of a key is used, so a key cannot be forgotten.

#include "config/keys.hpp"

#include <p3d/config/parse.hpp>

#include <xxhash.h>

#include <fmt/format.h>

namespace p3d::config {

std::string canonical_toml(Config const& config) {
  std::string out =
      "# The complete input of a run: every key, with its value as used. p3d with this file repeats the run.\n";
  std::string section;
  for (auto const& key : keys()) {
    if (key.section != section) {
      section = key.section;
      out += fmt::format("\n[{}]\n", section);
    }
    out += fmt::format("{} = {}\n", key.name, key.write(config));
  }
  return out;
}

std::uint64_t hash(Config const& config) {
  auto const text = canonical_toml(config);
  return XXH64(text.data(), text.size(), 0);
}

}  // namespace p3d::config
