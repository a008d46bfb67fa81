// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/io/metrics.hpp>
#include <p3d/io/text_file.hpp>

#include <support/temp_dir.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include <sys/resource.h>

namespace {
using namespace p3d;
using base::MetricsRow;

std::string error_of(auto&& action) {
  try {
    action();
  } catch (base::Error const& e) {
    EXPECT_FALSE(e.text().fix.empty());
    return e.text().where + ": " + e.text().found;
  }
  return "no error";
}

TEST(Metrics, LinesAreExactlyThis) {
  test::TempDir const dir;
  io::MetricsWriter writer(dir / "runs/a");
  writer.write({1, 8192, 5.5, 0.1, 1e-05, 12.0, 682666.6666666666, std::nullopt});
  writer.write({2, 16384, 1.0 / 3.0, 1e-300, 0.001, 12.5, 655360.0, 5.25});
  EXPECT_EQ(writer.path(), dir / "runs/a/metrics.csv");
  // Read while the writer is open: each row is flushed.
  EXPECT_EQ(io::read_text(writer.path()),
            "step,tokens,loss,grad_norm,lr,step_ms,tokens_per_s,eval_loss\n"
            "1,8192,5.5,0.1,1e-05,12,682666.6666666666,\n"
            "2,16384,0.3333333333333333,1e-300,0.001,12.5,655360,5.25\n");
}

TEST(Metrics, ReadsBackTheSameBits) {
  test::TempDir const dir;
  using Limits = std::numeric_limits<double>;
  std::vector<double> const hard{
      0.1,  2.0 / 3.0, std::nextafter(1.0, 2.0), Limits::min(), Limits::max(), Limits::denorm_min(), Limits::infinity(),
      -0.0, 1e22};
  std::vector<MetricsRow> rows;
  {
    io::MetricsWriter writer(dir.path().string());
    for (std::size_t i = 0; i < hard.size(); ++i) {
      MetricsRow row{
          static_cast<std::int64_t>(i), std::int64_t{1} << 62, hard[i], hard[i], hard[i], hard[i], hard[i], {}};
      if (i % 2 == 0) row.eval_loss = hard[i];
      rows.push_back(row);
      writer.write(row);
    }
  }
  EXPECT_EQ(base::read_metrics(dir / "metrics.csv").rows, rows);

  io::MetricsWriter again(dir.path().string());  // a new run replaces the file
  MetricsRow diverged;
  diverged.loss = Limits::quiet_NaN();
  again.write(diverged);
  auto const read = base::read_metrics(dir / "metrics.csv").rows;
  ASSERT_EQ(read.size(), 1u);
  EXPECT_TRUE(std::isnan(read[0].loss));
}

TEST(Metrics, AFolderThatCannotBeMadeIsNamed) {
  test::TempDir const dir;
  dir.write("file", "x");
  EXPECT_EQ(error_of([&] { io::MetricsWriter w(dir / "file/run"); }), (dir / "file/run") + ": Not a directory");
  std::filesystem::create_directories(dir.path() / "run/metrics.csv");
  EXPECT_EQ(error_of([&] { io::MetricsWriter w(dir / "run"); }), (dir / "run/metrics.csv") + ": Is a directory");
}

TEST(Metrics, AFullDiskIsAnErrorAndLeavesNoPieceOfARow) {
  test::TempDir const dir;
  io::MetricsWriter writer(dir.path().string());
  MetricsRow row;
  row.step = 1;
  writer.write(row);
  auto const whole = io::read_text(writer.path());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit const small{whole.size() + 5, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  auto const error = error_of([&] { writer.write(row); });
  auto const left = io::read_text(writer.path());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(error, writer.path() + ": File too large");
  EXPECT_EQ(left, whole);
  row.step = 2;
  writer.write(row);
  EXPECT_EQ(base::read_metrics(writer.path()).rows.size(), 2u);
}

TEST(Metrics, ADeletedOrReplacedFileIsAnError) {
  test::TempDir const dir;
  io::MetricsWriter writer(dir.path().string());
  writer.write({});
  std::filesystem::remove(writer.path());
  EXPECT_EQ(error_of([&] { writer.write({}); }), writer.path() + ": No such file or directory");
  dir.write("metrics.csv", "another");
  EXPECT_EQ(error_of([&] { writer.write({}); }), writer.path() + ": another file of this name");
  EXPECT_EQ(io::read_text(writer.path()), "another");
}

TEST(Metrics, TheHistoryOfAKilledRun) {
  test::TempDir const dir;
  auto const header = std::string(base::metrics_header) + "\n";
  auto until = [&](std::string const& text, std::int64_t last) {
    return io::metrics_until(dir.write("m.csv", header + text), last);
  };
  auto const row = [](int step) { return std::to_string(step) + ",2,3,4,5,6,7,"; };
  auto const three = row(1) + "\n" + row(2) + "\n" + row(3) + "\n";
  auto const all = until(three, 3);
  EXPECT_EQ(all.lines, (std::vector<std::string>{row(1), row(2), row(3)}));
  EXPECT_EQ(all.missing + all.dropped, 0);
  auto const two = until(three, 2);
  EXPECT_EQ(two.lines, (std::vector<std::string>{row(1), row(2)}));
  EXPECT_EQ(two.dropped, 1);
  // A line that was cut off is no row, not even where it looks like one.
  for (std::string const end : {"4", "4,2,3,4,5,6,7,", "4,2,3"}) {
    auto const torn = until(three + end, 4);
    EXPECT_EQ(torn.lines.size(), 3u) << end;
    EXPECT_EQ(torn.missing, 1);
    EXPECT_EQ(torn.dropped, 1);
  }
  auto const twice = until(three + row(2) + "\nnonsense\n" + row(4) + "\n", 4);
  EXPECT_EQ(twice.lines, (std::vector<std::string>{row(1), row(2), row(3), row(4)}));
  EXPECT_EQ(twice.dropped, 2);
  EXPECT_EQ(twice.missing, 0);
  // What is taken over stands in the new file as it was.
  io::MetricsWriter again(dir.path().string(), all.lines);
  EXPECT_EQ(io::read_text(again.path()), header + three);
}

TEST(Metrics, ARunWithMultiTokenPredictionHasOneMoreColumn) {
  test::TempDir const dir;
  io::MetricsWriter writer(dir.path().string(), {}, true);
  base::MetricsRow row{1, 2, 3, 4, 5, 6, 7, {}, 8.5};
  writer.write(row);
  row.step = 2;
  row.eval_loss = 9;
  writer.write(row);
  auto const header = std::string(base::metrics_mtp_header) + "\n";
  auto const text = header + "1,2,3,4,5,6,7,,8.5\n2,2,3,4,5,6,7,9,8.5\n";
  EXPECT_EQ(io::read_text(writer.path()), text);
  auto const rows = base::read_metrics(writer.path()).rows;
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1], row);
  EXPECT_EQ(io::metrics_until(writer.path(), 2, true).lines.size(), 2u);
  EXPECT_NE(error_of([&] { io::metrics_until(writer.path(), 2); }), "no error") << "of a run without it";
  auto const path = dir.write("m.csv", header + "1,2,3,4,5,6,7,,8.5\n2,2,3,4,5,6,7,\n");
  EXPECT_EQ(error_of([&] { base::read_metrics(path); }), path + ":3: \"2,2,3,4,5,6,7,\"");
  EXPECT_EQ(io::metrics_until(path, 2, true).dropped, 1);
  auto const other = dir.write("o.csv", std::string(base::metrics_header) + "\n1,2,3,4,5,6,7,,8.5\n");
  EXPECT_EQ(error_of([&] { base::read_metrics(other); }), other + ":2: \"1,2,3,4,5,6,7,,8.5\"");
}

TEST(Metrics, OtherFilesAreRefusedWithTheLine) {
  test::TempDir const dir;
  auto const header = std::string(base::metrics_header) + "\n";
  auto const good = "1,2,3,4,5,6,7,\n";
  auto where = [&](std::string const& text) {
    auto const path = dir.write("m.csv", text);
    auto const e = error_of([&] { base::read_metrics(path); });
    return e.starts_with(path) ? e.substr(path.size()) : e;
  };
  EXPECT_EQ(where(header + good), "no error");
  EXPECT_EQ(where(header), "no error");
  EXPECT_EQ(where("step,loss\n"), ":1: \"step,loss\"");
  EXPECT_EQ(where(""), ":1: \"\"");
  EXPECT_EQ(where(header + good + "1,2,3,4,5,6,7\n"), ":3: \"1,2,3,4,5,6,7\"");
  EXPECT_EQ(where(header + "1.5,2,3,4,5,6,7,\n"), ":2: \"1.5,2,3,4,5,6,7,\"");
  EXPECT_EQ(where(header + "1,2,,4,5,6,7,\n"), ":2: \"1,2,,4,5,6,7,\"");
  EXPECT_EQ(where(header + "1,2,3,4,5,6,7,8x\n"), ":2: \"1,2,3,4,5,6,7,8x\"");
  EXPECT_EQ(where(header + good + "1,2,3"), "no error");  // cut off: a run may be writing it
  EXPECT_EQ(where(header + "-1,2,3,4,5,6,7,\n"), ":2: \"-1,2,3,4,5,6,7,\"");
  EXPECT_EQ(where(header + "1,-2,3,4,5,6,7,\n"), ":2: \"1,-2,3,4,5,6,7,\"");
  EXPECT_EQ(where(header + "99999999999999999999,2,3,4,5,6,7,\n"), ":2: \"99999999999999999999,2,3,4,5,6,7,\"");
  EXPECT_EQ(where(header + "\x1b[2J\n"), ":2: \"?[2J\"");  // nothing that a terminal obeys
  // A number of a million digits is neither taken apart nor printed.
  auto const digits = std::string(1'000'000, '1');
  EXPECT_EQ(where(header + "1,2," + digits + ",4,5,6,7,\n"),
            ":2: \"1,2," + digits.substr(0, 96) + "\"... (1000013 characters)");
  EXPECT_EQ(where(digits), ":1: \"" + digits.substr(0, 100) + "\"... (1000000 characters)");
}

}  // namespace
