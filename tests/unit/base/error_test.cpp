// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>

#include <gtest/gtest.h>

#include <string>

using namespace p3d::base;

TEST(Error, CarriesTheFourPartsAndTheCode) {
  Error const error({.expected = "4 ranks", .found = "3", .where = "input.toml:2:1", .fix = "start 4 ranks"},
                    ExitCode::bad_input);
  EXPECT_EQ(error.code(), ExitCode::bad_input);
  EXPECT_EQ(error.text().found, "3");
  EXPECT_STREQ(error.what(), "expected: 4 ranks\nfound:    3\nwhere:    input.toml:2:1\nfix:      start 4 ranks");
}

TEST(Error, LeavesEmptyPartsOut) {
  EXPECT_EQ(format({.expected = "a", .found = "b", .where = "", .fix = ""}), "expected: a\nfound:    b");
  EXPECT_EQ(format({}), "");
}

TEST(Error, DefaultCodeIsAFailedRun) {
  EXPECT_EQ(Error({.expected = "a", .found = "b", .where = "", .fix = ""}).code(), ExitCode::run_failed);
}

// docs/reference.md and `p3d --help` promise these numbers to scripts.
TEST(Error, ExitCodesAreStable) {
  EXPECT_EQ(static_cast<int>(ExitCode::ok), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::run_failed), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::bad_input), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::timeout), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::not_finite), 4);
  EXPECT_EQ(static_cast<int>(ExitCode::stopped_unsaved), 6);
  EXPECT_EQ(static_cast<int>(ExitCode::interrupted), 75);
}

TEST(Require, PassesATrueConditionAndThrowsOnAFalseOne) {
  EXPECT_NO_THROW(P3D_REQUIRE(1 + 1 == 2, "arithmetic"));
  try {
    P3D_REQUIRE(1 + 1 == 3, "arithmetic holds");
    FAIL() << "P3D_REQUIRE let a false condition pass";
  } catch (Error const& error) {
    EXPECT_NE(error.text().expected.find("arithmetic holds"), std::string::npos);
    EXPECT_NE(error.text().expected.find("1 + 1 == 3"), std::string::npos);
    EXPECT_NE(error.text().where.find("error_test.cpp:"), std::string::npos);
    EXPECT_FALSE(error.text().fix.empty());
  }
}
