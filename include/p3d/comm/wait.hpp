// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policy of the one function that waits (Request::wait ends there), and the watchdog's report.
//
// A wait that outlasts timeout_s asks all ranks where they are. When one of them answers that it does work with a limit
// of its own (progress_at: a disk), the waiting ranks are told to wait for as long again. Otherwise the rank prints who
// waits for what (rank, communicator, operation, peer, sequence number, step, schedule action) and one table of the
// answers, in which a rank that is stopped, dead or computing is named as silent, and ends all ranks with
// base::ExitCode::timeout, in bounded time.
//
// A call that blocks inside a library cannot be waited for like that. blocking() is the only way to make such calls: a
// thread of this process watches the clock meanwhile, and past the budget it reports and ends the process with the same
// code.

#include <chrono>
#include <cstdint>
#include <string>

namespace p3d::comm {

/// How waiting is done. Set before the first communication; later only between waits, by the thread that communicates.
struct WaitPolicy {
  double timeout_s = 600.0;  ///< a single wait longer than this ends the run
  double start_s = 30.0;     ///< MPI_Init may take this long at least: processes do not start at the same time
  int spins = 200;           ///< first this many tests at full speed,
  int yields = 2000;         ///< then this many with a sched_yield after each (which lets a peer run on this core),
  int sleep_min_us = 20;     ///< then sleeps of a sixteenth of the time waited so far: never a wait more than
  int sleep_max_us = 200;    ///< about 6 % longer than it had to be; within these limits.
  int woken_max_us = 200;    ///< The longest sleep where the ranks that are waited for end it (all on one node)
};
void set_wait_policy(WaitPolicy policy);
WaitPolicy wait_policy();
/// A policy from measurements for `ranks_on_node` ranks on `cores` cores: it spins only when there is a core for each
/// rank. Environment sets make_wait_policy(600, ...) for the node that it finds; a program then changes only timeout_s.
WaitPolicy make_wait_policy(double timeout_s, int ranks_on_node, int cores);

/// A call that has outlasted its budget.
struct OverdueCall {
  char const* call;     ///< "MPI_Cart_create"
  std::string subject;  ///< a communicator or a file
  double waited_s;
  double budget_s;
};
/// A function that reports such a call and ends the process. The watch thread calls it; no MPI call is allowed there
/// while the main thread may be inside one.
using EndOverdue = void (*)(OverdueCall const& overdue);

/// Marks the calling thread, while the object lives, as inside a call that may block: `call` ("MPI_Cart_create") on
/// `subject` (a communicator or a file). When that outlasts `budget_s` seconds (0: timeout_s), the watch thread calls
/// `end`. Without `end` the call is one of MPI: the rank, the call, the subject and the state of this node's processes
/// are printed, and this process ends with base::ExitCode::timeout; the launcher ends the others, unless their own
/// watch does. Time in which this process was stopped does not count. Calls may nest; any thread may make them; the
/// cost is two locks of a mutex.
class BlockingCall {
public:
  BlockingCall(char const* call, std::string subject, double budget_s = 0.0, EndOverdue end = nullptr);
  ~BlockingCall();
  BlockingCall(BlockingCall const&) = delete;
  BlockingCall& operator=(BlockingCall const&) = delete;
  /// Begins the next call on the same subject, with a time budget of its own.
  void next(char const* call);

private:
  friend struct BlockingWatch;
  char const* call_;
  std::string subject_;
  double budget_s_;
  EndOverdue end_;
  double waited_s_ = 0.0;  ///< seconds that the watch has counted
  std::chrono::steady_clock::time_point begin_;
  BlockingCall* next_ = nullptr;  ///< the watch's list
};

/// Runs `body` as a BlockingCall and returns what it returns. Every MPI call that can wait for another rank goes
/// through here (tests/lint/blocking.py), and so do calls of other libraries that wait for MPI or for a disk.
template <class Body>
decltype(auto) blocking(char const* call, std::string const& subject, Body&& body) {
  BlockingCall const here(call, subject);
  return body();
}

/// Advances p3d's own collectives and answers other ranks' watchdogs. For code that waits long for something that is
/// not a Request, such as a disk: the peers' collectives need this rank's part. Never blocks; only the thread that
/// calls MPI may call it. Returns true while collectives are under way that are messages: they move only when this
/// rank looks.
bool progress();

/// Acts as progress(), and tells other ranks that this one is at `work` that is no communication and ends within a
/// limit of its own ("fsync of FILE"): while it answers so, ranks whose waits outlast timeout_s wait on.
void progress_at(std::string const& work);

/// Tells the step and the schedule action of this rank, for the report of a stuck run. Cheap: it stores pointers.
/// `action` must stay valid until the next call (the executor keeps the texts of its program).
void set_activity(std::int64_t step, char const* action);

/// Asks all ranks where they are, for at most `grace_s` seconds, and returns one line per rank; a rank that does not
/// answer is named as silent. Ranks inside a wait answer. Any rank may ask; the others need not call this. The watchdog
/// uses it.
std::string collect_states(double grace_s);

}  // namespace p3d::comm
