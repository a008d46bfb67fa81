// SPDX-License-Identifier: Apache-2.0
#include <p3d/report/describe.hpp>

#include <gtest/gtest.h>

using p3d::report::grade_memory;

namespace {

constexpr double mib = 1024.0 * 1024.0;

// Few bytes of p3d's own beside MPI's and the BLAS's: a ratio of them would frighten and say nothing.
TEST(GradeMemory, NamesWhatLibrariesTake) {
  auto const text = grade_memory(77 * mib, 400 * mib, 668 * mib, 4);
  EXPECT_NE(text.find("77.00 MiB predicted, 268.00 MiB found"), std::string::npos) << text;
  EXPECT_NE(text.find("(47.75 MiB a rank more, within the 100 MiB that MPI and BLAS"), std::string::npos) << text;
  EXPECT_EQ(text.find("3.48"), std::string::npos) << text;
}

TEST(GradeMemory, TellsTheRatioOfWhatNoLibraryTakes) {
  auto const text = grade_memory(1000 * mib, 400 * mib, 1900 * mib, 4);
  EXPECT_NE(text.find("(125.00 MiB a rank more, beyond the 100 MiB that MPI and BLAS"), std::string::npos) << text;
  EXPECT_NE(text.find("found / predicted 1.500)"), std::string::npos) << text;
}

TEST(GradeMemory, TellsTheRatioOfLessThanPredicted) {
  auto const text = grade_memory(1000 * mib, 400 * mib, 1300 * mib, 4);
  EXPECT_NE(text.find("(found / predicted 0.900)"), std::string::npos) << text;
}

}  // namespace
