// SPDX-License-Identifier: Apache-2.0
#pragma once
// Generators, passes, validator and text form of pipeline schedules. A generator writes the compute actions of each
// rank, passes complete them (passes.hpp has their list), and the validator proves that the program runs to its end.
//
// Example: complete(one_f_one_b(2, 3)) begins with 0F0@0 0SEND_F0@0 0RECV_B0@0 on rank 0, and validate() of it is
// empty.

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

/// More than any number of actions, half of what fits.
inline constexpr int any_number = 1 << 30;

/// Forwards (stages x microbatches) of the largest program that is made or read: some 12 million actions, which are
/// made, proved and simulated in seconds and within 1 GiB.
inline constexpr std::int64_t most_forwards = std::int64_t{1} << 21;

// --- passes ----------------------------------------------------------------------------------------------------------

/// Cuts each stage s of a program of compute actions into parts[s] stages, which follow each other on its rank: what
/// was one action becomes as many in a row. So the weights of a few layers can come and go alone.
Program refine(Program const& compute, std::vector<int> const& parts);

/// Gives every (stage, microbatch) an activation slot by liveness: the lowest slot free from its first to its last
/// action (and, where the previous stage lives on the same rank, until that stage has used the gradient in it). Sets
/// num_slots. On a program without messages the slot is kept from where its receive must be posted at the latest;
/// `lookahead` > 0 keeps it that many compute actions longer, so that the receive can be posted earlier: more slots,
/// better overlap.
void assign_slots(Program& program, int lookahead = 0);

/// The most microbatches of each stage that are between their I and the end of their W at a time, of those in slots
/// from `first_slot` on. 0 where no backward is split. The program has its slots.
std::vector<int> split_backwards_at_a_time(Program const& program, int first_slot = 0);

/// Adds messages between stages on different ranks. Each receive of an activation is posted where its data should come
/// (if all parts of all stages take the same time) or `receives_ahead` compute actions before its use, whichever is
/// earlier, but not before its slot is free. Each receive of a gradient is posted `gradients_ahead` compute actions
/// before its use, but after the forward of its microbatch; by default at once after that. Either is earlier where the
/// order of the sends demands it. Each send directly follows the action that produces it. On one rank, neighbouring
/// stages hand over without a message.
void add_messages(Program& program, int receives_ahead = 1, int gradients_ahead = any_number);

/// Brings pairs about: forwards and backwards of different microbatches next to each other, so that either computes
/// while the other waits inside its layers (Execution::pairs). `exchange` works on compute actions: where a backward
/// comes just before a forward, the forward goes first, which is one more microbatch ahead and may take one more slot
/// (arXiv 2412.19437 does so by its schedule; Megatron-Core's overlap of expert exchanges by one more warm-up).
void exchange_pairs(Program& compute);
/// On a complete program: what is received between the two of a pair moves before both, what is sent, or needs the
/// forward, behind both.
void close_pairs(Program& program);

/// On compute actions: splits the last stage's backwards, and puts the weight parts off until `limit` of them wait; the
/// last ones follow all else that the rank computes, while the stages before it finish. The last stage, which has the
/// output layer too, then hands its gradients on earlier (Megatron-Core's defer_embedding_wgrad_compute does so for
/// that layer's weight alone). Each that waits keeps its microbatch's slot. False, and nothing is changed, where these
/// backwards are split already.
bool defer_weight_gradients(Program& compute, int limit);

/// Adds reduce_gradients after a stage's last backward action (and the send that follows it) and one optimizer_step at
/// the end of each rank's list. With more than one of `workers`, which divide the microbatches, gradients are reduced
/// behind the last microbatch of each. Throws base::Error where gradients of a worker come before the last ones of
/// the worker before: they would be in one sum.
void add_reductions(Program& program, int workers = 1);

/// The complete program for a generator's output: assign_slots, add_messages, add_reductions.
Program complete(Program compute, int receives_ahead = 1, int slot_lookahead = 0);

// --- validator -------------------------------------------------------------------------------------------------------

/// How messages start. No way changes what a rank sends, or in which order.
enum class P2p : std::uint8_t {
  separate,  ///< each message starts by itself
  batched,   ///< a send and a receive beside each other with the same peer start in one call (p2p.hpp), and whoever
             ///< waits for one of them waits for both
  ring       ///< messages start in rounds (p2p.hpp), which the ranks of the pipeline have in common
};

/// The way of the executor with messages, for the proof of progress. The rules, which the executor must keep:
///  * RECV_* posts a non-blocking receive into its slot and goes on; the F, B or I that reads it waits for it.
///  * A RECV_* whose slot is still written out by OFFLOAD_F is put off until that copy is done, and the rank goes on.
///    With `waits_inside` the rank waits for the copy: while it waits inside an action for a rank of its stage, nobody
///    would post the receive, and its sender may be whom that rank waits for.
///  * SEND_* starts a non-blocking send. For simulations and tests `sends_in_flight` may be a number: before a send the
///    rank waits until fewer of that kind to that rank are outstanding; with 0 it also waits for this one (a blocking
///    send). The executor has no such limit.
///  * The action that takes a slot (RECV_F, or F where no message brings the input) waits for the sends that still read
///    it.
///  * OFFLOAD_F and RELOAD_F start a copy and go on (offload.hpp). A slot keeps the buffers of messages of a microbatch
///    that was offloaded: RECV_B, B and I wait for a gradient's send that still reads it, I for an activation's too.
///  * Neighbouring stages on one rank use each other's slot: F and what follows the previous one's output, B and I the
///    gradient of the next one's input.
///  * STEP waits for everything outstanding.
///  * With `pairs` the two of a pair wait for all that they read before either begins, and then interleave. Nothing
///    lies between them that another rank sees, so this is the same wait as that of the second one after the first.
///  * Messages of one (source rank, destination rank, kind) match in the order posted, whatever their stage.
/// Without `waits_inside` the executor may also put off a receive whose buffer is still sent, and those of its kind
/// behind it, and go on meanwhile. It posts them before it waits for another rank and before it touches the slot: so it
/// waits only where these rules wait, having done more. All waits are for counts that only grow, so the order in which
/// ranks run cannot change the outcome: one execution proves progress for all, and progress when every send is a
/// rendezvous implies it when some or all are eager.
struct Execution {
  bool rendezvous = true;     ///< a send completes only when its receive is posted (false: eager)
  int sends_in_flight = 1;    ///< outstanding sends per (peer, kind) before the executor must wait; 0: blocking sends
  bool pairs = false;         ///< an F and the B, I or W that directly follows it, of another microbatch, interleave
  bool waits_inside = false;  ///< ranks of a stage wait for each other inside actions
  P2p p2p = P2p::separate;    ///< how messages start
  bool operator==(Execution const&) const = default;
};

/// The kinds of programs: a whole step, or forwards alone (evaluation, sampling), without backwards, reductions and
/// STEP.
enum class Pass : std::uint8_t { training, forward_only };

/// An error of a program: which rank's which action (-1: none in particular), and why.
struct Violation {
  int rank = -1;
  int index = -1;
  std::string message;
};

/// Checks a complete program: per (stage, microbatch) one F, then exactly one of B or (I then W); inputs present before
/// use; every send with its receive, in the same order per (source, destination, kind); no slot reused while live;
/// reductions after the last backward; and progress: the program runs to its end under `execution`. Of a forward-only
/// program: one F per (stage, microbatch), nothing of a backward, and a slot is live until its output has been sent or
/// read. Cost: linear in the number of actions. Empty: valid. Otherwise all errors of form (at most 100), or the first
/// one of order on each rank, or the first message whose ends do not belong together, or one for each rank of a
/// deadlock.
std::vector<Violation> validate(Program const& program, Execution execution = {}, Pass pass = Pass::training);

/// Throws base::Error with the rank x step table (cut to a window for large programs) and the bad cell marked when
/// validate() finds a violation. What is to be executed is a ValidProgram (valid_program.hpp).
void require_valid(Program const& program, Execution execution = {}, Pass pass = Pass::training);

// --- text ------------------------------------------------------------------------------------------------------------

/// A header line "p3d-schedule 1 stages=4 ranks=4 microbatches=8", then one line "rank 0: 0F0 0F1 ..." per rank. The
/// header also has placement=0,1,1,0 where stage s is not on rank s % ranks, slots=4,3,2,1 after the slot pass, and
/// tied=1 for Program::tied, and vocabulary=1 for Program::divides_vocabulary. parse_program() inverts it; it skips
/// empty lines and comments ("#" to the end of the line), and throws base::Error with the line number.
std::string to_text(Program const& program);
Program parse_program(std::string_view text);

/// CSV: one row per rank, one action per cell, without slots. parse_csv() reads it and skips empty cells, so that a
/// file with one column per step can be read too; a stage lives where its actions stand. Throws base::Error with the
/// line.
std::string to_csv(Program const& program);
Program parse_csv(std::string_view text);

/// A schedule that a person wrote, in either form. Of compute actions alone a complete program is made; in one with
/// messages, only slots and reductions are added where there are none. Not validated. Throws base::Error.
Program parse_schedule_file(std::string_view text, int slot_lookahead = 0);

/// The program as a table, one row per rank, one column per step, compute actions only, as if every action took one
/// step and messages none; ">1F3<" marks a cell (a message there gets a cell of its own). At most `max_ranks` rows and
/// `max_steps` columns, around the mark; 0: all.
std::string to_table(Program const& program, int marked_rank = -1, int marked_index = -1, int max_ranks = 0,
                     int max_steps = 0);

}  // namespace p3d::schedule
