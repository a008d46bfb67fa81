// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hook for work that a thread must do now and then while it computes: messages that proceed only when somebody calls
// the library which carries them. Rooms that compute for long call poll(), without knowing what it does.

#include <utility>

namespace p3d::base {

namespace detail {
/// The function that poll() of this thread calls, or null.
inline thread_local void (*poll_function)() = nullptr;
inline thread_local bool poll_often = false;
}  // namespace detail

/// Calls the thread's function, if it has one. Meant for the time between two kernels; without a function it takes a
/// few nanoseconds.
inline void poll() {
  if (detail::poll_function) detail::poll_function();
}

/// True when this thread has a function to poll.
inline bool polls() { return detail::poll_function != nullptr; }

/// True when it is to be polled every millisecond rather than every ten: work waits for messages that move only then.
inline bool polls_often() { return polls() && detail::poll_often; }

/// Makes poll() on this thread call `function` (null: nothing) as long as an object of this class lives. The function
/// must not block.
class Polling {
public:
  explicit Polling(void (*function)(), bool often = false)
      : before_(std::exchange(detail::poll_function, function)),
        often_before_(std::exchange(detail::poll_often, often)) {}
  ~Polling() {
    detail::poll_function = before_;
    detail::poll_often = often_before_;
  }
  Polling(Polling const&) = delete;
  Polling& operator=(Polling const&) = delete;

private:
  void (*before_)();  ///< the function to restore
  bool often_before_;
};

}  // namespace p3d::base
