// SPDX-License-Identifier: Apache-2.0
#pragma once
// A negative test matches the message: any error would do otherwise, also one of the test's own making.

#include <p3d/base/error.hpp>

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace p3d::test {

/// f must throw base::Error, with `words` somewhere in its four parts.
template <class F>
void expect_error(F&& f, std::string_view words) {
  try {
    f();
  } catch (base::Error const& e) {
    EXPECT_NE(std::string_view(e.what()).find(words), std::string_view::npos)
        << "the error does not say '" << words << "':\n"
        << e.what();
    return;
  }
  ADD_FAILURE() << "no error that says '" << words << "'";
}

/// The four parts of the base::Error (bad_input) that f must throw.
template <class F>
base::ErrorText error_of(F&& f) {
  try {
    f();
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
    EXPECT_FALSE(e.text().expected.empty() || e.text().found.empty() || e.text().where.empty() || e.text().fix.empty());
    return e.text();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace p3d::test
