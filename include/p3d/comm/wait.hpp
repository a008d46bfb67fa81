// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policy of the one function that waits (Request::wait ends there), and the watchdog's report.
//
// A wait that outlasts timeout_s asks all ranks where they are. Where one of them answers that it is at work which has
// a limit of its own (progress_at: a disk), the ranks that wait are told to wait on for as long again. Else it prints
// who waits for what (rank, communicator, operation, peer, sequence number, step, schedule action) and one table of the
// answers, in which a rank that is stopped, dead or computing is named as silent, and ends all ranks with
// base::ExitCode::timeout, in bounded time.
//
// What blocks inside a library cannot be waited for like that. blocking() is the one door to such calls: a thread of
// this process looks at the clock meanwhile, and past the budget it reports and ends the process with the same code.

#include <chrono>
#include <cstdint>
#include <string>

namespace p3d::comm {

/// How waiting is done. Set once per process, before the first communication.
struct WaitPolicy {
  double timeout_s = 600.0;  ///< a single wait longer than this ends the run
  double start_s = 30.0;     ///< MPI_Init may take this long at least: processes do not start at the same time
  int spins = 200;           ///< first this many tests at full speed,
  int yields = 2000;         ///< then this many with a sched_yield after each (which lets a peer run on this core),
  int sleep_min_us = 20;     ///< then sleeps of a sixteenth of the time waited so far: never a wait more than
  int sleep_max_us = 200;    ///< about 6 % longer than it had to be; within these limits
};
void set_wait_policy(WaitPolicy policy);
WaitPolicy wait_policy();
/// Measured choices for `ranks_on_node` ranks on `cores` cores: spins only when there is a core for each rank.
/// Environment sets make_wait_policy(600, ...) for the node that it finds; a program then changes timeout_s alone.
WaitPolicy make_wait_policy(double timeout_s, int ranks_on_node, int cores);

/// A call that has outlasted its budget.
struct OverdueCall {
  char const* call;     ///< "MPI_Cart_create"
  std::string subject;  ///< a communicator or a file
  double waited_s;
  double budget_s;
};
/// What tells of such a call and ends the process. Called by the watch thread, on which no MPI call is allowed while
/// the main thread may be inside one.
using EndOverdue = void (*)(OverdueCall const& overdue);

/// While it lives, this thread is inside a call that may block: `call` ("MPI_Cart_create") on `subject` (a communicator
/// or a file). When that outlasts `budget_s` seconds (0: timeout_s), the watch thread calls `end`. Without one the call
/// is one of MPI: the rank, the call, the subject and the state of this node's processes are printed, and this process
/// ends with base::ExitCode::timeout; the launcher ends the others, unless their own watch does. Time in which this
/// process was stopped does not count. May nest; any thread may use it; costs two locks of a mutex.
class BlockingCall {
public:
  BlockingCall(char const* call, std::string subject, double budget_s = 0.0, EndOverdue end = nullptr);
  ~BlockingCall();
  BlockingCall(BlockingCall const&) = delete;
  BlockingCall& operator=(BlockingCall const&) = delete;
  /// The next call on the same subject, with a budget of its own.
  void next(char const* call);

private:
  friend struct BlockingWatch;
  char const* call_;
  std::string subject_;
  double budget_s_;
  EndOverdue end_;
  double waited_s_ = 0.0;  ///< as the watch has counted
  std::chrono::steady_clock::time_point begin_;
  BlockingCall* next_ = nullptr;
};

/// Runs `body` as a BlockingCall; returns what it returns. Every MPI call that can wait for another rank goes through
/// here (tests/lint/blocking.py), as do calls of other libraries that wait for MPI or for a disk.
template <class Body>
decltype(auto) blocking(char const* call, std::string const& subject, Body&& body) {
  BlockingCall const here(call, subject);
  return body();
}

/// Moves p3d's own collectives on, and answers other ranks' watchdogs. For who waits long for something that is not a
/// Request, such as a disk: the peers' collectives need this rank's part. Never blocks; by the thread that calls MPI.
void progress();

/// As progress(), by a rank at `work` that is no communication and ends within a limit of its own ("fsync of FILE"):
/// while it answers so, ranks whose waits outlast timeout_s wait on.
void progress_at(std::string const& work);

/// What this rank is doing, for the report of a stuck run: the step and the schedule action. Cheap: stores pointers.
/// `action` must stay valid until the next call (the executor keeps the texts of its program).
void set_activity(std::int64_t step, char const* action);

/// Collects "who is where" from all ranks that still answer, for at most `grace_s` seconds. Used by the watchdog: each
/// rank inside a wait answers. Returns one line per rank; a rank that does not answer is named as silent. Any rank may
/// ask (the others need not call this).
std::string collect_states(double grace_s);

}  // namespace p3d::comm
