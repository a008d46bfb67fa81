// SPDX-License-Identifier: Apache-2.0
#pragma once
// Real times of this rank's actions (run.trace): the executor fills it, trace.hpp makes pictures of it.

#include <p3d/schedule/action.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace p3d::engine {

/// From `begin` to `end`, in seconds of this rank's steady clock, the rank was busy with `action` or (`waits`) waited
/// for the message, or at STEP for the other ranks. An action that waits in its middle has several events. Sent as
/// bytes.
struct RecordedEvent {
  double begin = 0.0, end = 0.0;
  schedule::Action action;
  std::int32_t waits = 0;
};

/// The last steps of a run, each with its events in order of time.
class Recorder {
public:
  struct Step {
    std::int64_t number = 0;
    std::vector<RecordedEvent> events;
  };

  /// Older steps than the last `steps_kept` are forgotten.
  explicit Recorder(std::size_t steps_kept);

  /// Seconds of the steady clock, which all events use.
  static double now();

  void begin_step(std::int64_t number);
  void begin_action();
  /// The action, or the rank between two actions, waited from `begin` to now for the message (or step) `what`.
  void waited(schedule::Action const& what, double begin);
  /// The newest step is begun anew, or never: what it has is forgotten.
  void drop_step();
  /// The time since begin_action(), less the waits, belongs to `action`.
  void end_action(schedule::Action const& action);
  /// Ends two actions that were interleaved, of which each was busy so many seconds: they are shown one after the
  /// other.
  void end_pair(schedule::Action const& first, double first_s, schedule::Action const& second, double second_s);

  std::deque<Step> const& steps() const { return steps_; }

private:
  std::size_t steps_kept_;
  std::deque<Step> steps_;
  double busy_since_ = 0.0;
  std::size_t first_of_action_ = 0;  ///< its first event
  bool in_action_ = false;           ///< begin_action() was called, its end not yet
};

}  // namespace p3d::engine
