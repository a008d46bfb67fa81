#pragma once
// Generators, passes, validator and text form of pipeline schedules.

#include <p3d/schedule/action.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::schedule {

// --- generators: compute actions only ------------------------------------------------------------------------------

/// GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards, both in order of the microbatches.
Program gpipe(int num_ranks, int num_microbatches);

/// One-forward-one-backward (PipeDream-Flush; Narayanan et al., arXiv 2104.04473, figure 4): rank r warms up with
/// min(p - 1 - r, m) forwards, alternates, then drains. Peak live activations on rank r: min(p - r, m).
Program one_f_one_b(int num_ranks, int num_microbatches);

// --- passes ----------------------------------------------------------------------------------------------------------

/// Gives every (stage, microbatch) an activation slot by liveness: the lowest slot free from its first to its last action.
/// Sets num_slots.
void assign_slots(Program& program);

/// Adds messages between stages on different ranks: each receive is posted as early as its slot allows (at most
/// `receives_ahead` before its use), each send directly after the action that produces it. On one rank, neighbouring stages
/// hand over without a message.
void add_messages(Program& program, int receives_ahead = 1);

/// Adds reduce_gradients after a stage's last backward action and one optimizer_step at the end of each rank's list.
void add_reductions(Program& program);

/// The complete program for a generator's output: assign_slots, add_messages, add_reductions.
Program complete(Program compute);

// --- validator -------------------------------------------------------------------------------------------------------

/// What the executor really does, for the proof of progress.
struct Execution {
  bool rendezvous = true;   ///< a send completes only when its receive is posted (false: eager)
  int sends_in_flight = 1;  ///< outstanding sends per (peer, direction) before the executor must wait
};

/// A fault of a program: which rank's which action, and why.
struct Violation {
  int rank = -1;
  int index = -1;
  std::string message;
};

/// Checks a complete program: per (stage, microbatch) one F, then exactly one of B or (I then W); inputs present before
/// use; every send with its receive, in the same order per (source, destination, kind); no slot reused while live;
/// reductions after the last backward; and progress: the program runs to its end under `execution`. Cost: linear in the
/// number of actions. Empty: valid.
std::vector<Violation> validate(Program const& program, Execution execution = {});

/// Throws base::Error with the rank x step table and the bad cell marked when validate() finds a violation.
void require_valid(Program const& program, Execution execution = {});

// --- text ------------------------------------------------------------------------------------------------------------

/// One line per rank, actions separated by blanks, after a header line "p3d-schedule 1 stages=4 ranks=4 microbatches=8".
/// parse_program() inverts it.
std::string to_text(Program const& program);
Program parse_program(std::string_view text);
/// The program as a table, one row per rank, one column per step, compute actions only; a cell may be marked.
std::string to_table(Program const& program, int marked_rank = -1, int marked_index = -1);

}  // namespace p3d::schedule
