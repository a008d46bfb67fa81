// SPDX-License-Identifier: Apache-2.0
// Places survive what TOML allows: dotted keys, indentation, comments, CRLF, multi-line lists, inline tables.

#include "support.hpp"

namespace p3d::config::test {
namespace {

TEST(Place, LineAndColumn) {
  struct Row {
    char const* text;
    char const* where;
  };
  for (auto const& row : {Row{"# a comment\n\n[run]  # more\n   steps   =   0\n", "t.toml:4:16"},
                          Row{"[run]\r\nsteps = 0\r\n", "t.toml:2:9"}, Row{"run.steps = 0\n", "t.toml:1:13"},
                          Row{"run = { steps = 0 }\n", "t.toml:1:17"}, Row{"[run]\n\"steps\" = 0\n", "t.toml:2:11"},
                          Row{"[run]\n# \xc3\xa9\nsteps = 0", "t.toml:3:9"}}) {
    EXPECT_EQ(only_error(parse(row.text)).where, row.where) << row.text;
  }
}

TEST(Place, TheNameIsTheOneGiven) {
  auto const result = parse_text("[run]\nsteps = 0\n", "some/where/x.toml", "", {"data.format=synthetic"}, 0);
  EXPECT_EQ(only_error(result).where, "some/where/x.toml:2:9");
}

}  // namespace
}  // namespace p3d::config::test
