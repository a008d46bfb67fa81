// SPDX-License-Identifier: Apache-2.0
#pragma once
// Wall-clock time.

#include <chrono>

namespace p3d::base {

/// A clock that counts seconds since its construction or its last reset; it is steady, so changes of the date do not
/// matter.
class Stopwatch {
public:
  Stopwatch() : start_(Clock::now()) {}
  void reset() { start_ = Clock::now(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_;
};

}  // namespace p3d::base
