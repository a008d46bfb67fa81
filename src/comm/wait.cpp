// SPDX-License-Identifier: Apache-2.0
#include <p3d/comm/wait.hpp>

#include <p3d/base/error.hpp>

#include <sched.h>

#include <algorithm>

#include "bell.hpp"
#include "internal.hpp"
#include "node_memory.hpp"
#include "watchdog.hpp"

namespace p3d::comm {

namespace {
WaitPolicy the_policy;

// Seconds between two answers to other ranks' questions.
constexpr double seconds_between_answers = 0.01;

// Seconds after which yields end, however few they were. On a loaded machine one yield can cost a time slice of every
// other program, and an MPI whose MPI_Test yields as well (Open MPI) made 500 of them last 36 s, longer than any
// budget.
constexpr double seconds_of_yields = 0.1;

// A rank that waits looks many times in a second. When more than this lies between two looks, its process was stopped
// (scontrol suspend, a debugger, a paused virtual machine), most likely with the ranks that it waits for.
constexpr double longest_between_looks = 1.0;

}  // namespace

void set_wait_policy(WaitPolicy policy) {
  P3D_REQUIRE(policy.timeout_s > 0.0, "a wait has a positive time budget");
  P3D_REQUIRE(policy.sleep_min_us > 0 && std::min(policy.sleep_max_us, policy.woken_max_us) >= policy.sleep_min_us,
              "sleeps grow from a positive length");
  the_policy = policy;
}

WaitPolicy wait_policy() { return the_policy; }

bool progress() {
  detail::advance_engines();
  detail::answer_questions();
  return detail::engines_send_messages();
}

void progress_at(std::string const& work) {
  detail::AtWork const here(work);
  progress();
}

// The numbers follow from measurements (the tables are in the history of this file). With 8 ranks on 4 otherwise idle
// cores an 8-byte all-reduce took about 0.01 to 0.1 ms with 500 yields before sleeping, 0.5 to 1.4 ms with sleeps
// alone, and 5 to 10 ms when every rank polls (MPI_Allreduce). When other programs load the cores, yields lose to
// sleeps alone by up to 2 times; with uneven work between the reductions no difference could be measured.
//
// A rank that looks every 0.1 ms takes time, and caches, from those that work. Measured once (the history has how):
// with 4 ranks on 2 cores, and sleeps of at most 5 ms for ranks that are woken, a GPT of 30 M in a pipeline of 4 stages
// ran 1.19 times as fast (2 stages and dp 2: 1.10; 8 ranks as 4 stages and dp 2: 1.37; tp 4: 1.04; dp 4: 1.01).
WaitPolicy make_wait_policy(double timeout_s, int ranks_on_node, int cores) {
  WaitPolicy policy;
  policy.timeout_s = timeout_s;
  if (ranks_on_node > cores) {  // a rank that spins keeps the peer that it waits for from running
    policy.spins = 4;
    policy.yields = 500;
    policy.sleep_max_us = 100;
    policy.woken_max_us = 5000;
  }
  return policy;
}

namespace detail {

namespace {

/// True when other ranks wake this one as soon as it can go on: with this operation and with all others under way.
/// Messages between nodes and collectives of MPI move when a rank looks, and nobody wakes it for them.
bool is_woken(Pending const& pending) {
  if (!have_bells() || !all_on_one_node() || !engines_are_woken()) return false;
  return pending.engine != nullptr ? pending.engine->is_woken() : !pending.peers.empty();
}

}  // namespace

void wait(Pending& pending) {
  WaitPolicy const policy = the_policy;
  InWait const here(pending);
  auto const spin = [&] {
    for (int i = 0; i < policy.spins; ++i) {
      if (test(pending)) return true;
    }
    return false;
  };
  auto const finished = [&] {
    if (spin()) return true;
    for (int i = 0; i < policy.yields; ++i) {
      if (test(pending)) return true;
      if (here.seconds() > seconds_of_yields) break;
      sched_yield();
    }
    return false;
  };
  double next_answer = seconds_between_answers;
  double budget = policy.timeout_s;
  double last_look = 0.0;
  if (!finished()) {
    double news = 0.0;  // when another rank last woke this one
    for (;;) {
      arm_bell();  // a rank with news from here on wakes this one
      if (test(pending)) break;
      double const waited = here.seconds();
      if (waited - last_look > longest_between_looks) budget += waited - last_look;
      last_look = waited;
      if (waited > budget) {
        disarm_bell();
        budget = waited + wait_on_or_end();
        last_look = here.seconds();
      }
      if (waited >= next_answer) {
        answer_questions();
        next_answer = waited + seconds_between_answers;
      }
      int const longest = is_woken(pending) ? policy.woken_max_us : policy.sleep_max_us;
      bool const woken =
          sleep_on_bell(std::clamp(static_cast<int>((waited - news) * (1e6 / 16.0)), policy.sleep_min_us, longest));
      if (woken) {  // MPI may need several calls for what has come, and a long message moves in many steps
        news = here.seconds();
        if (spin()) break;
      }
    }
    disarm_bell();
  }
  pending.comm->accounting.wait_seconds += here.seconds();
}

}  // namespace detail
}  // namespace p3d::comm
