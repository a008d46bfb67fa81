// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a thread looks after now and then while it computes: messages that move on only when somebody calls the library
// that carries them. Rooms that compute for long call poll(), without knowing what it does.

#include <utility>

namespace p3d::base {

namespace detail {
inline thread_local void (*poll_function)() = nullptr;
}

/// Between two kernels; a few nanoseconds where nobody asked for it.
inline void poll() {
  if (detail::poll_function) detail::poll_function();
}

/// Whether anybody asked for it.
inline bool polls() { return detail::poll_function != nullptr; }

/// While it lives, poll() on this thread calls `function` (null: nothing), which does not block.
class Polling {
public:
  explicit Polling(void (*function)()) : before_(std::exchange(detail::poll_function, function)) {}
  ~Polling() { detail::poll_function = before_; }
  Polling(Polling const&) = delete;
  Polling& operator=(Polling const&) = delete;

private:
  void (*before_)();
};

}  // namespace p3d::base
