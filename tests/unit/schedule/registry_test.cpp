#include <p3d/base/error.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <set>

using namespace p3d::schedule;

TEST(Registry, names_are_unique_and_explained) {
  std::set<std::string_view> names;
  for (Generator const* g : generators()) {
    EXPECT_TRUE(names.insert(g->name).second) << g->name;
    EXPECT_FALSE(g->help.empty()) << g->name;
    EXPECT_EQ(find_generator(g->name), g);
  }
  EXPECT_TRUE(names.contains("gpipe"));
  EXPECT_TRUE(names.contains("1f1b"));
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
            Program const program = complete(g->make({p, m}), ahead, lookahead);
            for (Execution const how : {Execution{true, 1}, {true, 2}, {false, 1}, {false, 2}}) {
              auto const found = validate(program, how);
              ASSERT_TRUE(found.empty()) << g->name << ", p " << p << ", m " << m << ", ahead " << ahead << ", lookahead "
                                         << lookahead << ": " << found.front().message << '\n'
                                         << to_text(program);
            }
          }
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
