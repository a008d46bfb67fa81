// SPDX-License-Identifier: Apache-2.0
// What is read of a run's folder, and the text of the page. tests/app/report_test.py parses the page.

#include <p3d/page/run_page.hpp>

#include "page/base64.hpp"

#include <support/errors.hpp>
#include <support/temp_dir.hpp>
#include <unit/plan/summaries.hpp>

#include <chrono>
#include <filesystem>
#include <random>

namespace {
using namespace p3d;
using namespace p3d::page;
using test::error_of, test::example_summary;

constexpr char const* two_rows = "1,64,5.5,1.25,0.001,10,6400,\n2,128,4.0625,0.5,0.002,12,5333.25,4.5\n";

std::string const header = std::string(base::metrics_header) + "\n";

TEST(RunFolder, WhatIsNoneIsRefused) {
  p3d::test::TempDir const dir;
  EXPECT_EQ(error_of([&] { read_run(dir / "nowhere"); }).found, "no such folder");
  dir.write("file", "x");
  EXPECT_EQ(error_of([&] { read_run(dir / "file"); }).found, "a file");
  EXPECT_EQ(error_of([&] { read_run(dir.path().string()); }).found, "a folder without metrics.csv");
  auto const where = [&](std::string const& text) {
    auto const path = dir.write("metrics.csv", text);
    auto const e = error_of([&] { read_run(dir.path().string()); });
    EXPECT_FALSE(e.fix.empty());
    return e.where.substr(path.size());
  };
  EXPECT_EQ(where(""), ":1");
  EXPECT_EQ(where("step,loss\n"), ":1");
  EXPECT_EQ(where(header + two_rows + "nonsense\n"), ":4");
  EXPECT_EQ(where(header + two_rows + "2,2,3,4,5,6,7,\n"), ":4");  // steps do not ascend
  EXPECT_EQ(where(header + "1,2,3\n" + two_rows), ":2");
}

TEST(RunFolder, TheRowThatIsBeingWrittenIsLeftOut) {
  p3d::test::TempDir const dir;
  auto const folder = dir.path().string();
  for (std::string const end : {"", "3", "3,192,3.5,1,1,1,1,", "3,19"}) {
    dir.write("metrics.csv", header + two_rows + end);
    auto const run = read_run(folder);
    EXPECT_EQ(run.rows.size(), 2u);
    EXPECT_EQ(run.cut_off, !end.empty());
  }
  dir.write("metrics.csv", header);
  EXPECT_TRUE(read_run(folder).rows.empty());
  EXPECT_NE(to_html({read_run(folder)}, "now").find("No step is finished yet."), std::string::npos);
}

TEST(RunFolder, DamagedHistoriesAreReadOrRefused) {
  p3d::test::TempDir const dir;
  auto const good = header + two_rows + "3,192,nan,inf,-inf,1e400,1e-400,\n4,256,3,1,1,1,1,-nan\n";
  std::mt19937_64 draw(3);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    auto text = good;
    for (auto n = draw() % 3 + 1; n > 0; --n) {
      auto const at = header.size() + draw() % (text.size() - header.size());
      constexpr std::string_view likely = ",.\n0123456789-einfxa\0";
      if (draw() % 2 == 0)
        text[at] = likely[draw() % likely.size()];
      else
        text.insert(at, std::string(draw() % 9, likely[draw() % likely.size()]));
    }
    dir.write("metrics.csv", text);
    try {
      auto const page = to_html({read_run(dir.path().string())}, "now");
      EXPECT_TRUE(page.ends_with("</html>\n"));
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 400);
}

TEST(RunFolder, ADeadRunIsToldFromALiveOne) {
  p3d::test::TempDir const dir;
  auto const folder = dir.path().string();
  dir.write("metrics.csv", header + two_rows);
  EXPECT_EQ(read_run(folder).state(), "not known");
  auto s = example_summary();
  s.starts.back().state = plan::RunState::running;
  dir.write("summary.json", to_json(s));
  EXPECT_EQ(read_run(folder).state(), "ended without a word");
  auto const lock = dir.write(".p3d.lock", "");
  EXPECT_EQ(read_run(folder).state(), "running");
  std::filesystem::last_write_time(lock, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(10));
  EXPECT_EQ(read_run(folder).state(), "ended without a word");
  dir.write("summary.json", to_json(example_summary()));
  EXPECT_EQ(read_run(folder).state(), "failed");
  dir.write("summary.json", "{");
  auto const damaged = read_run(folder);
  ASSERT_EQ(damaged.notes.size(), 2u);  // and no resolved.toml
  EXPECT_TRUE(damaged.notes[0].starts_with("summary.json is not used: ")) << damaged.notes[0];
}

TEST(RunFolder, OfExpertsTheMostUnevenLayerOfEachStep) {
  p3d::test::TempDir const dir;
  auto const folder = dir.path().string();
  dir.write("metrics.csv", header + two_rows);
  EXPECT_TRUE(read_run(folder).experts.empty());
  dir.write(
      "experts.csv",
      "step,layer,busiest,entropy,tokens of each expert\n5,0,1.5,0.9,6 2\n5,1,1.25,0.95,5 3\n10,0,1,1,4 4\n10,1,");
  auto const run = read_run(folder);
  ASSERT_EQ(run.experts.size(), 2u);
  EXPECT_EQ(run.experts[0].step, 5);
  EXPECT_EQ(run.experts[0].busiest, 1.5);
  EXPECT_EQ(run.experts[0].entropy, 0.9);
  EXPECT_EQ(run.experts[1].busiest, 1.0);
  auto const page = to_html({run}, "now");
  EXPECT_NE(page.find("Busiest expert"), std::string::npos);
}

TEST(Base64, IsThatOfRfc4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

}  // namespace
