// SPDX-License-Identifier: Apache-2.0
#pragma once
// The times at which the actions of a program ran (measured) or would run (simulated), and their form as a trace. The
// simulator and the executor's recorder both fill this form, so a prediction and a measurement are drawn by the same
// function.

#include <p3d/schedule/action.hpp>

#include <functional>
#include <string>
#include <vector>

namespace p3d::schedule {

/// One action on one rank. For messages, the time that the rank spends on them itself (usually nothing), or waits for
/// them.
struct TimelineEvent {
  int rank = 0;  ///< pipeline rank
  Action action;
  double start = 0;  ///< seconds
  double end = 0;
  bool waits = false;  ///< the rank waits for this message (or, at STEP, for the other ranks)
  int step = -1;       ///< step of the training run; -1: not said
  bool operator==(TimelineEvent const&) const = default;
};

/// One step (or several) of a pipeline. The time between two events of a rank is time that it waited, too.
struct Timeline {
  int num_ranks = 0;
  std::vector<TimelineEvent> events;  ///< in any order; of one rank they do not overlap
  std::string title;                  ///< "1f1b, 4 ranks, 8 microbatches"
  std::vector<std::string>
      rank_notes;  ///< empty, or one short text per rank, at the end of its row ("waits 27 %, 1.2 GiB")
  std::vector<std::string> caption;     ///< lines below the picture (bubble, peak memory, how it was got)
  std::vector<std::string> rank_names;  ///< empty, or what each rank is called in a trace ("rank 6 (pp 1)")
  /// Stages per rank (chunks): with more than one, the picture tells them apart. 0: the number is read off the events.
  int stages_per_rank = 0;
};

/// Draws timelines below one another, under a title, as SVG (room page, which is no part of libp3d).
using DrawTimelines = std::function<std::string(std::vector<Timeline> const& timelines, std::string const& title)>;

/// The uses that a rank made of the time from the first start to the last end of all ranks.
struct RankTimes {
  double compute = 0;  ///< F, B, I and W
  double other = 0;    ///< reductions, the optimizer step, messages
  double wait = 0;     ///< the rest: the bubble
};
std::vector<RankTimes> rank_times(Timeline const& timeline);

/// The share of all ranks' time that is not compute, in [0, 1]: the mean over the ranks of 1 - compute / span, where
/// the span is from the first start to the last end of the compute actions of all ranks.
double bubble_share(Timeline const& timeline);

/// The Chrome trace format (JSON; opens in Perfetto and chrome://tracing): one track per rank, times in microseconds,
/// the waits as events of their own ("wait 2RECV_F3" where it is known for what).
std::string to_chrome_trace(Timeline const& timeline);
/// Several pipelines, each a process named by its title, on one clock.
std::string to_chrome_trace(std::vector<Timeline> const& timelines);

}  // namespace p3d::schedule
