// SPDX-License-Identifier: Apache-2.0
#pragma once
// The watchdog's channel: ranks inside a wait answer the question "who is where" on a communicator of their own.

#include <p3d/base/timer.hpp>

#include "internal.hpp"

namespace p3d::comm::detail {

/// Duplicates world for questions and answers. Collective; close_watchdog() must be called before MPI_Finalize.
void open_watchdog();
void close_watchdog();

/// Marks this rank as waiting for `pending` while the object lives. Waits may nest; the innermost one counts.
class InWait {
public:
  explicit InWait(Pending const& pending);
  ~InWait();
  InWait(InWait const&) = delete;
  InWait& operator=(InWait const&) = delete;
  Pending const& pending() const { return pending_; }
  double seconds() const { return watch_.seconds(); }

private:
  Pending const& pending_;
  base::Stopwatch watch_;
  InWait const* outer_;
};

/// The step and action that set_activity() was told: "step 12, 2F0". Any thread may call it.
std::string activity();

/// Answers the questions that have arrived. Cheap when there are none: one MPI_Iprobe.
void answer_questions();

/// Marks this rank, while the object lives, as being at work that has a limit of its own; it answers questions
/// meanwhile.
class AtWork {
public:
  explicit AtWork(std::string const& work);
  ~AtWork();
  AtWork(AtWork const&) = delete;
  AtWork& operator=(AtWork const&) = delete;
};

/// Handles a wait that has outlasted its budget. Returns the seconds for which it may go on when some rank is AtWork,
/// or was when a wait last ran out. Otherwise it reports, prints one table, and ends all ranks with ExitCode::timeout.
double wait_on_or_end();

}  // namespace p3d::comm::detail
