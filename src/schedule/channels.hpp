// SPDX-License-Identifier: Apache-2.0
#pragma once
// The times at which the actions of a program are expected to run, and the latest places at which the receives of its
// channels (graph.hpp) have to be posted.

#include <p3d/schedule/graph.hpp>

#include <cstddef>
#include <limits>
#include <vector>

namespace p3d::schedule {

/// The times of the actions of a compute-only program if F, I and W take one unit of time each, B two and messages
/// none. An action that cannot run has the time `never`.
class ExpectedTimes {
public:
  static constexpr int never = std::numeric_limits<int>::max();
  explicit ExpectedTimes(Program const& program);
  int end_of_forward(int stage, int microbatch) const;
  /// The position in the list of `rank` that it has reached by `time`: before the action of that index. never: never.
  int place(int rank, int time) const;

private:
  Program const& program_;
  std::vector<int> forward_, backward_;  ///< the end of F of each cell, and of B or I
  std::vector<std::vector<int>> start_;  ///< starts of the actions of each rank that can run
};

/// The latest position of each receive of a compute-only program in the list of the receiving rank: before the action
/// of that index. A receive is posted before its use; in the order of the sends of its
/// channel (a send follows its F, or its B or I, directly); and, an activation, before the channel's next send is
/// expected. So no send waits for the one before it if the ranks run as expected, and no ranks wait in a circle,
/// however they run. Indexed [stage * num_microbatches + microbatch]; -1: no message.
struct Deadlines {
  std::vector<int> activation;
  std::vector<int> gradient;
};
Deadlines receive_deadlines(Program const& program, Channels const& channels, ExpectedTimes const& expected);

/// A number of a rank, stage, slot or microbatch as an index.
constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
/// The index of a (stage, microbatch).
inline std::size_t cell(Program const& program, int stage, int microbatch) {
  return at(stage) * at(program.num_microbatches) + at(microbatch);
}

/// The passes index by stage and microbatch: throws base::Error unless every action is in range and on its stage's
/// rank.
void require_in_range(Program const& program);

/// The times of the receives of a compute-only program, which is in range. Slots and messages both follow from them,
/// and a program without its backwards tries several; they are found once. The program must outlive them.
struct ReceiveTimes {
  explicit ReceiveTimes(Program const& compute)
      : channels(compute), expected(compute), deadlines(receive_deadlines(compute, channels, expected)) {}
  Channels channels;
  ExpectedTimes expected;
  Deadlines deadlines;
};
/// assign_slots() and add_messages() of a program that is in range, with the times of its receives.
void assign_slots(Program& compute, int lookahead, ReceiveTimes const& times);
void add_messages(Program& compute, int receives_ahead, int gradients_ahead, ReceiveTimes const& times);

}  // namespace p3d::schedule
