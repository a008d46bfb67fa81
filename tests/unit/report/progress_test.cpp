// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/log.hpp>
#include <p3d/report/progress.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

using p3d::report::Progress;
using p3d::report::ProgressPoint;

namespace {

/// What `steps` steps print, of which every third has an evaluation when `evaluates`.
std::string printed(int steps, int log_every, int columns, bool evaluates = false) {
  testing::internal::CaptureStdout();
  Progress progress(steps, log_every, columns);
  for (int i = 1; i <= steps; ++i) {
    ProgressPoint p{
        .step = i, .loss = 5.0 / i, .grad_norm = 0.5, .lr = 1e-3, .tokens = 3000.0, .seconds = 2.0, .eval_loss = {}};
    if (evaluates && i % 3 == 0) p.eval_loss = 4.25;
    progress.step(p);
  }
  p3d::base::log_root("the end");
  return testing::internal::GetCapturedStdout();
}

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST(ProgressInAFile, HasTheFirstTheLastAndEveryNthStep) {
  auto const text = printed(8, 3, 0);
  auto const lines = lines_of(text);
  ASSERT_EQ(lines.size(), 5u) << text;
  EXPECT_TRUE(lines[0].starts_with("step 1/8  loss 5.0000    1.5K tokens/s  ")) << lines[0];
  EXPECT_NE(lines[0].find(" left"), std::string::npos);
  EXPECT_TRUE(lines[1].starts_with("step 3/8  loss 1.6667"));
  EXPECT_TRUE(lines[2].starts_with("step 6/8  "));
  EXPECT_TRUE(lines[3].starts_with("step 8/8  "));
  EXPECT_EQ(lines[3].find(" left"), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

// The first step is slow: what is left follows from the others. With it the mean of two steps would leave more than a
// minute; without it the second one, which only prints, has 0.6 s until it does.
TEST(ProgressInAFile, TheFirstStepIsAnUpperBound) {
  testing::internal::CaptureStdout();
  p3d::report::Progress progress(101, 2, 0);
  for (int i = 1; i <= 2; ++i) {
    if (i == 1) ::usleep(1300000);
    progress.step({.step = i, .loss = 5.0, .tokens = 3000.0, .seconds = 2.0, .eval_loss = {}});
  }
  auto const lines = lines_of(testing::internal::GetCapturedStdout());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find(" < "), std::string::npos) << lines[0];  // 100 steps of 1.3 s
  EXPECT_NE(lines[0].find(" min "), std::string::npos) << lines[0];
  EXPECT_EQ(lines[1].find("<"), std::string::npos) << lines[1];
  EXPECT_EQ(lines[1].find(" min "), std::string::npos) << lines[1];
}

TEST(ProgressInAFile, HasEveryEvaluation) {
  auto const lines = lines_of(printed(7, 100, 0, true));  // 1, 3, 6, 7 and the end
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_NE(lines[1].find("validation loss 4.2500"), std::string::npos);
  EXPECT_EQ(lines[3].find("validation"), std::string::npos);
}

TEST(ProgressOnATerminal, RewritesOneLine) {
  auto const text = printed(8, 1, 100);
  // The last step and "the end" stay; nothing else ends a line.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  for (int i = 1; i <= 8; ++i) EXPECT_NE(text.find("step " + std::to_string(i) + "/8  loss "), std::string::npos);
  // Each step but the first erases its predecessor.
  std::size_t erased = 0;
  for (auto at = text.find("\r\x1b[K"); at != std::string::npos; at = text.find("\r\x1b[K", at + 1)) ++erased;
  EXPECT_GE(erased, 7u);
}

TEST(ProgressOnATerminal, KeepsEvaluations) {
  auto const text = printed(8, 1, 100, true);  // 3, 6, 8 and the end
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
}

TEST(ProgressOnATerminal, LeavesOutWhatDoesNotFit) {
  for (int columns : {1, 10, 40, 60, 80}) {
    auto text = printed(8, 1, columns);
    text.erase(text.find("step 8/8"));  // the last line stays and may wrap
    for (std::size_t at = 0; at < text.size();) {
      auto const end = std::min(text.find("\r\x1b[K", at), text.size());
      EXPECT_LT(static_cast<int>(end - at), columns + (end == at ? 1 : 0))
          << columns << ": " << text.substr(at, end - at);
      at = end + 4;
    }
  }
  EXPECT_NE(printed(8, 1, 60).find(" left\r"), std::string::npos);  // whole fields only
}

TEST(ProgressOnATerminal, ErrorsStartBelowTheLine) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  p3d::base::status_root("step 3");
  p3d::base::error_here("p3d: stopped");
  p3d::base::error_here("again");
  auto const out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(out, "\r\x1b[Kstep 3\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "p3d: stopped\nagain\n");
}
