// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/recorder.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>
#include <chrono>

namespace p3d::engine {

namespace {
/// Seconds before and between the waits of an action, in which it only looks whether it must wait.
constexpr double too_short = 2e-5;
}  // namespace

Recorder::Recorder(std::size_t steps_kept) : steps_kept_(steps_kept) {
  P3D_REQUIRE(steps_kept > 0, "a recorder keeps a step");
}

double Recorder::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Recorder::begin_step(std::int64_t number) {
  Step step;
  if (steps_.size() == steps_kept_) {  // its memory is used again
    step = std::move(steps_.front());
    steps_.pop_front();
    step.events.clear();
  }
  step.number = number;
  in_action_ = false;
  steps_.push_back(std::move(step));
}

void Recorder::begin_action() {
  first_of_action_ = steps_.back().events.size();
  busy_since_ = now();
  in_action_ = true;
}

void Recorder::waited(schedule::Action const& what, double begin) {
  auto& events = steps_.back().events;
  // The action that is busy until then is known at its end.
  if (in_action_ && begin - busy_since_ > too_short) events.push_back({busy_since_, begin, {}, 0});
  busy_since_ = now();
  events.push_back({begin, busy_since_, what, 1});
}

void Recorder::drop_step() { steps_.pop_back(); }

void Recorder::end_action(schedule::Action const& action) {
  auto& events = steps_.back().events;
  double const end = now();
  for (std::size_t i = first_of_action_; i < events.size(); ++i)
    if (!events[i].waits) events[i].action = action;
  events.push_back({busy_since_, end, action, 0});
  in_action_ = false;
}

void Recorder::end_pair(schedule::Action const& first, double first_s, schedule::Action const& second,
                        double second_s) {
  auto& events = steps_.back().events;
  double const end = now(), between = std::max(busy_since_, end - second_s);
  for (std::size_t i = first_of_action_; i < events.size(); ++i)
    if (!events[i].waits) events[i].action = first;
  events.push_back({std::max(busy_since_, between - first_s), between, first, 0});
  events.push_back({between, end, second, 0});
  in_action_ = false;
}

}  // namespace p3d::engine
