// SPDX-License-Identifier: Apache-2.0
#include "config/sources.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

namespace p3d::config {

Sources::Kind Sources::kind(std::string_view key) const {
  auto const it = map_.find(key);
  return it == map_.end() ? unnoted_ : it->second.kind;
}

Entry const* Sources::entry(std::string_view key) const {
  auto const it = map_.find(key);
  return it == map_.end() ? nullptr : it->second.entry;
}

std::string Sources::place(std::string_view key, Config const& config) const {
  auto const* known_key = find_key(key);
  P3D_REQUIRE(known_key, "rules name known keys");
  auto const value = known_key->write(config);
  auto const* e = entry(key);
  switch (kind(key)) {
    case Kind::given:
      if (!e) break;  // of a whole Config, whose values have no place
      if (!e->from_file()) return input_.place(*e, *e->node);
      return fmt::format("{} ({} = {})", input_.place(*e, *e->node), key, value);
    case Kind::preset:
      return fmt::format("{} ({} = {} of this {})", input_.place(*e, *e->node), key, value,
                         e->key->full() == "model.load" ? "model" : "preset");
    case Kind::by_default:
    case Kind::lost:
    case Kind::open: break;
  }
  return fmt::format("{} ({} = {} by default)", input_.place_of_section(known_key->section), key, value);
}

}  // namespace p3d::config
