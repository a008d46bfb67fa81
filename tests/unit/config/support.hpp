// SPDX-License-Identifier: Apache-2.0
#pragma once
// Short ways to parse a text and to look for an error.

#include <p3d/config/parse.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace p3d::config::test {

/// Parses a text as "t.toml"; synthetic data unless the text says otherwise, so that no file is needed.
inline ParseResult parse(std::string const& text, std::vector<std::string> const& overrides = {}, int num_ranks = 0,
                         Purpose purpose = Purpose::training) {
  bool const has_data = text.find("[data]") != std::string::npos;
  return parse_text(text + (has_data ? "" : "\n[data]\nformat = \"synthetic\"\n"), "t.toml", P3D_SOURCE_DIR, overrides,
                    num_ranks, purpose);
}

/// The configuration of an input that must be right.
inline Config good(std::string const& text, std::vector<std::string> const& overrides = {}, int num_ranks = 0) {
  auto const result = parse(text, overrides, num_ranks);
  EXPECT_TRUE(result.errors.empty()) << text << "\n" << format(result.errors);
  return result.config.value_or(Config{});
}

/// For every key of the table, as far as this build has it, overrides that give it another value than its default and
/// what it needs for that, over the input change_base(). (canonical_test.cpp, which knows of every key.)
std::vector<std::string> changed_keys();
std::vector<std::string> change_of(std::string const& key);
std::string change_base();

/// The one error of an input that must have exactly one.
inline KeyError only_error(ParseResult const& result) {
  EXPECT_FALSE(result.config.has_value());
  EXPECT_EQ(result.errors.size(), 1u) << format(result.errors);
  return result.errors.empty() ? KeyError{} : result.errors.front();
}

inline void expect_contains(std::string const& text, std::string const& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in \"" << text << "\"";
}

}  // namespace p3d::config::test
