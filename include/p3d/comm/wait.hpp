#pragma once
// The policy of the one function that waits (Request::wait ends there), and the watchdog's report.
//
// A wait that outlasts timeout_s prints who waits for what (rank, communicator, operation, peer, sequence number, step,
// schedule action), asks all ranks where they are, prints one table of the answers, in which a rank that is stopped,
// dead or computing is named as silent, and ends all ranks with base::ExitCode::timeout, in bounded time.

#include <cstdint>
#include <string>

namespace p3d::comm {

/// How waiting is done. Set once per process, before the first communication.
struct WaitPolicy {
  double timeout_s = 600.0;  ///< a single wait longer than this ends the run
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

/// What this rank is doing, for the report of a stuck run: the step and the schedule action. Cheap: stores pointers.
/// `action` must stay valid until the next call (the executor keeps the texts of its program).
void set_activity(std::int64_t step, char const* action);

/// Collects "who is where" from all ranks that still answer, for at most `grace_s` seconds. Used by the watchdog: each
/// rank inside a wait answers. Returns one line per rank; a rank that does not answer is named as silent. Any rank may
/// ask (the others need not call this).
std::string collect_states(double grace_s);

}  // namespace p3d::comm
