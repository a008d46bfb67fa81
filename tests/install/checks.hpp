// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks of the example programs: the first wrong answer is an exception with its line.

#include <p3d/base/error.hpp>

#include <stdexcept>
#include <string>

namespace p3d::example {

/// Throws with the line when `ok` is false.
inline void expect(bool ok, int line) {
  if (!ok) throw std::runtime_error("wrong answer in line " + std::to_string(line));
}

/// The message of the error that `call` throws; "" without one.
template <class Call>
std::string error_of(Call const& call) {
  try {
    call();
  } catch (base::Error const& e) {
    return e.what();
  }
  return "";
}

inline bool has(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

}  // namespace p3d::example

#define CHECK(condition) ::p3d::example::expect(condition, __LINE__)
