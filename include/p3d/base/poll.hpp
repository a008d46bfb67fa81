// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hook for work that a thread must do now and then while it computes: messages that proceed only when somebody calls
// the library which carries them. Rooms that compute for long call poll(), without knowing what it does.

#include <utility>

namespace p3d::base {

/// How soon a poll follows another one: within ten milliseconds, within one, or within one where the function answers
/// that something is under way which moves only then. A GEMM is cut for it, so that with `as_answered` the time which
/// messages take decides where, and with it last bits of BLAS libraries that choose among algorithms by size.
enum class Polls { rare, often, as_answered };

namespace detail {
/// The function that poll() of this thread calls, or null.
inline thread_local bool (*poll_function)() = nullptr;
inline thread_local Polls poll_rule = Polls::rare;
}  // namespace detail

/// Calls the thread's function, if it has one. True when the next call should come within a millisecond. Meant for the
/// time between two kernels; without a function it takes a few nanoseconds.
inline bool poll() {
  bool const answer = detail::poll_function != nullptr && detail::poll_function();
  return detail::poll_rule == Polls::as_answered ? answer : detail::poll_rule == Polls::often;
}

/// True when this thread has a function to poll.
inline bool polls() { return detail::poll_function != nullptr; }

/// Makes poll() on this thread call `function` (null: nothing) as long as an object of this class lives. The function
/// must not block.
class Polling {
public:
  explicit Polling(bool (*function)(), Polls rule = Polls::rare)
      : before_(std::exchange(detail::poll_function, function)), rule_before_(std::exchange(detail::poll_rule, rule)) {}
  ~Polling() {
    detail::poll_function = before_;
    detail::poll_rule = rule_before_;
  }
  Polling(Polling const&) = delete;
  Polling& operator=(Polling const&) = delete;

private:
  bool (*before_)();  ///< the function to restore
  Polls rule_before_;
};

}  // namespace p3d::base
