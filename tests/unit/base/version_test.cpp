// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/version.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

using namespace p3d::base;

TEST(Version, IsThreeNumbers) {
  std::string const text = version();
  EXPECT_EQ(std::count(text.begin(), text.end(), '.'), 2);
  EXPECT_EQ(text.find_first_not_of("0123456789."), std::string::npos) << text;
}

TEST(Version, StampIsFilledIn) {
  EXPECT_EQ(version_with_hash().find(version() + " (git "), 0u);
  std::string const description = build_description();
  EXPECT_EQ(description.find('@'), std::string::npos) << "a placeholder of the stamp was left: " << description;
  for (char const* word : {"build", "compiler", "Kokkos ", "Kokkos-Kernels ", "BLAS"})
    EXPECT_NE(description.find(word), std::string::npos) << word;
}
