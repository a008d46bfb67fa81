// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <set>

using namespace p3d::schedule;

TEST(Registry, names_are_unique_and_explained) {
  std::set<std::string_view> names;  // and aliases
  for (Generator const* g : generators()) {
    EXPECT_TRUE(names.insert(g->name).second) << g->name;
    EXPECT_FALSE(g->help.empty()) << g->name;
    EXPECT_EQ(find_generator(g->name), g);
    if (!g->alias.empty()) {
      EXPECT_TRUE(names.insert(g->alias).second) << g->alias;
      EXPECT_EQ(find_generator(g->alias), g);
    }
  }
  for (char const* name : {"sequential", "round_robin", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1",
                           "zb_h2", "zb_v", "dualpipe_v", "v_half", "v_min"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Registry, makes_the_schedule_of_that_name) {
  EXPECT_EQ(generate("gpipe", {3, 5}), gpipe(3, 5));
  EXPECT_EQ(generate("1f1b", {3, 5}), one_f_one_b(3, 5));
}

// Every schedule, from its smallest number of microbatches up, with every execution: it must be valid when completed.
TEST(Registry, every_schedule_is_valid) {
  for (Generator const* g : generators())
    for (int p = 1; p <= 8; ++p)
      for (int m = g->smallest_microbatches(p); m <= 4 * p + 1; ++m)
        for (int ahead : {0, 1, 2, 100})
          for (int lookahead : {0, 1, 3}) {
            Program const program = complete(generate(g->name, {p, m, 0}), ahead, lookahead);
            for (Execution const how : {Execution{true, 1}, {true, 2}, {false, 1}, {false, 2}}) {
              auto const found = validate(program, how);
              ASSERT_TRUE(found.empty()) << g->name << ", p " << p << ", m " << m << ", ahead " << ahead
                                         << ", lookahead " << lookahead << ": " << found.front().message << '\n'
                                         << to_text(program);
            }
          }
}

TEST(Registry, any_number_of_chunks_and_any_group_is_valid) {
  for (Generator const* g : generators()) {
    if (!g->any_stages_per_rank) continue;
    for (int v = 1; v <= 4; ++v)
      for (int p = 1; p <= 5; ++p)
        for (int m = 1; m <= 3 * p + 2; ++m)
          for (int group = p; group <= (g->any_group_size ? 2 * p : p); ++group)
            for (int ahead : {0, 1, 3}) {
              auto const found = validate(complete(generate(g->name, {p, m, v, g->any_group_size ? group : 0}), ahead));
              ASSERT_TRUE(found.empty()) << g->name << ", p " << p << ", m " << m << ", v " << v << ", group " << group
                                         << ", ahead " << ahead << ": " << found.front().message;
            }
  }
}

TEST(Registry, refuses_what_a_schedule_does_not_take) {
  auto const refused = [](std::string_view name, Shape const& shape, char const* words) {
    try {
      generate(name, shape);
      ADD_FAILURE() << name;
    } catch (p3d::base::Error const& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), p3d::base::ExitCode::bad_input);
    }
  };
  refused("1f1b", {2, 4, 2}, "1 stage per rank for 1f1b");
  refused("zb_v", {2, 4, 1}, "2 stages per rank for zb_v");
  refused("gpipe", {2, 4, 1, 2}, "pipeline.microbatch_group_size");
  refused("interleaved_1f1b", {4, 8, 2, 3}, "at least 4 microbatches, one for every");
  refused("dualpipe_v", {4, 7, 2}, "at least 8 microbatches for dualpipe_v on 4");
}

TEST(Registry, unknown_name_gets_the_nearest) {
  try {
    generate("1f1d", {2, 2});
    FAIL();
  } catch (p3d::base::Error const& error) {
    EXPECT_NE(error.text().fix.find("1f1b"), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), p3d::base::ExitCode::bad_input);
  }
}

TEST(Registry, too_few_microbatches_names_the_smallest) {
  try {
    generate("gpipe", {2, 0});
    FAIL();
  } catch (p3d::base::Error const& error) {
    EXPECT_NE(error.text().expected.find("at least 1 "), std::string::npos) << error.what();
  }
}
