// SPDX-License-Identifier: Apache-2.0
// summary.json: what is written is read back; anything else is refused.

#include "summaries.hpp"

#include <support/errors.hpp>

#include <random>

namespace {
using namespace p3d;
using plan::parse_summary, plan::RunState, plan::RunSummary, plan::to_json, plan::utc;

TEST(RunSummaryFile, ReadsBackWhatWasWritten) {
  auto const text = to_json(test::example_summary());
  auto const read = parse_summary(text, "summary.json");
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.run, "a \"name\" <b>");
  EXPECT_EQ(read.exit_code, 75);
  ASSERT_EQ(read.starts.size(), 2u);
  EXPECT_EQ(read.starts[0].state, RunState::stopped);
  EXPECT_EQ(read.starts[1].first_step, 40);
  EXPECT_EQ(read.memory_of_ranks, test::example_summary().memory_of_ranks);
  EXPECT_EQ(read.phases.at(0).max, 3.0);
  // 2e12 FLOPs of 4 ranks in a second, of 4e12 possible.
  EXPECT_DOUBLE_EQ(read.mfu(), 0.5);
  EXPECT_DOUBLE_EQ(read.hfu(), 0.625);
  EXPECT_EQ(RunSummary{}.mfu(), 0.0);
  EXPECT_EQ(parse_summary(to_json({}), "").state(), RunState::running);
}

TEST(RunSummaryFile, TimesAreUtc) {
  EXPECT_EQ(utc(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(utc(951782400), "2000-02-29T00:00:00Z");
}

TEST(RunSummaryFile, NamesThatAreNoUtf8AreReplaced) {
  RunSummary s;
  s.run =
      "a\xff"
      "b";
  EXPECT_EQ(parse_summary(to_json(s), "").run,
            "a\xEF\xBF\xBD"
            "b");
}

TEST(RunSummaryFile, OtherFilesAreRefused) {
  auto const found = [](std::string const& text) { return test::error_of([&] { parse_summary(text, "s"); }).found; };
  EXPECT_NE(found("").find("parse error"), std::string::npos);
  EXPECT_EQ(found("[1]"), "no JSON object");
  EXPECT_EQ(found("{}"), "no \"p3d_run_summary\"");
  EXPECT_EQ(found("{\"p3d_run_summary\": 2}"), "another version");
  EXPECT_EQ(found("{\"p3d_run_summary\": 1, \"phases\": 3}"), "\"phases\" that is no array");
  EXPECT_EQ(found("{\"p3d_run_summary\": 1, \"starts\": [7]}"), "an element of \"starts\" that is no object");
  EXPECT_EQ(found("{\"p3d_run_summary\": 1, \"starts\": [{\"state\": \"asleep\"}]}"), "the state \"asleep\"");
  for (std::string const steps : {"\"many\"", "-1", "1.5", "1e300", "18446744073709551616", "576460752303423489"}) {
    EXPECT_EQ(found("{\"p3d_run_summary\": 1, \"steps\": " + steps + "}"),
              "\"steps\" that is no whole number from 0 to 576460752303423488");
  }
  EXPECT_NE(found("{\"p3d_run_summary\": 1, \"mfu\": 1, \"median_step_s\": []}").find("type must be number"),
            std::string::npos);
}

TEST(RunSummaryFile, DamagedFilesAreReadOrRefused) {
  auto const good = to_json(test::example_summary());
  std::mt19937_64 draw(7);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto text = good;
    for (auto n = draw() % 4 + 1; n > 0; --n) {
      auto const at = draw() % text.size();
      if (draw() % 3 == 0)
        text.erase(at, draw() % 40 + 1);
      else
        text[at] = static_cast<char>(draw());
      if (text.empty()) break;
    }
    try {
      parse_summary(text, "s");
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
