// SPDX-License-Identifier: Apache-2.0
#pragma once
// The watchdog's channel: ranks inside a wait answer "who is where" on a communicator of their own.

#include <p3d/base/timer.hpp>

#include "internal.hpp"

namespace p3d::comm::detail {

/// Duplicates world for the questions and answers; collective. close_watchdog before MPI_Finalize.
void open_watchdog();
void close_watchdog();

/// Marks this rank as waiting for `pending` while it lives; waits may nest, the innermost counts.
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

/// What set_activity() was told: "step 12, 2F0". From any thread.
std::string activity();

/// Answers the questions that have arrived. Cheap when there are none: one MPI_Iprobe.
void answer_questions();

/// Marks this rank, which answers questions while it lives, as being at work that has a limit of its own.
class AtWork {
public:
  explicit AtWork(std::string const& work);
  ~AtWork();
  AtWork(AtWork const&) = delete;
  AtWork& operator=(AtWork const&) = delete;
};

/// A wait has outlasted its budget. Returns the seconds for which it may go on where some rank is AtWork, or was when a
/// wait last ran out; else reports, prints one table, and ends all ranks with ExitCode::timeout.
double wait_on_or_end();

}  // namespace p3d::comm::detail
