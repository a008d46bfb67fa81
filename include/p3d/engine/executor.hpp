// SPDX-License-Identifier: Apache-2.0
#pragma once
// The executor: one switch over the actions of this rank's list. It moves activations and gradients between stages and
// calls the stages; it knows no schedule and makes no exception for the first or the last stage.

#include <p3d/base/poll.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/engine/message_start.hpp>
#include <p3d/engine/phases.hpp>
#include <p3d/engine/recorder.hpp>
#include <p3d/engine/stage_port.hpp>
#include <p3d/schedule/opening.hpp>
#include <p3d/schedule/stream.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace p3d::engine {

/// The calls that the executor makes at the places that are not its own business.
struct Hooks {
  /// The tokens of the samples of a microbatch: the same on every rank that it comes to. Empty: model.seq_len.
  std::function<std::int64_t(int microbatch)> length;
  /// Puts a microbatch's tokens and targets into a slot.
  std::function<void(int stage, int slot, int microbatch)> load;
  /// Puts a microbatch's tokens or targets into a slot of the rank's part of the vocabulary, for E, S or G.
  std::function<void(schedule::Op op, int slot, int microbatch)> load_part;
  /// Parameters [first, last) of a stage got their last contribution of this step.
  std::function<void(int stage, std::size_t first, std::size_t last)> gradients_ready;
  /// Finish the reduction of a stage's gradients.
  std::function<void(int stage)> reduce_gradients;
  /// Update the parameters of a stage of this rank (-1: of all).
  std::function<void(int stage)> optimizer_step;
  /// Without a flush between steps: newer weights are read next than those of this step, by a microbatch of a later
  /// one.
  std::function<void()> newest_needed;
};

class ActivationStore;
class VocabularyActions;

class Executor {
public:
  /// How many sends per (peer, direction) may be outstanding; the validator proves progress for this number. A send
  /// reads a slot and is waited for when the slot is taken again, so the slots are the limit and this one is none: a
  /// rank never stops computing because its neighbour is late.
  static constexpr int sends_in_flight = std::numeric_limits<int>::max();

  /// `stages`: this rank's stages by number; `waited`: seconds that they have waited inside actions; `polls`: how often
  /// GEMMs look after messages. All references, and the programs that run, must outlive the executor.
  Executor(std::map<int, StagePort*> stages, comm::Communicator& pipeline, device::ExecSpace const& exec,
           std::function<double()> waited, base::Polls polls);

  /// Runs this rank's actions of `program` to the end and waits for everything outstanding. Losses are where
  /// Workspace::set_loss says. `loss_scale` as in Stage::backward; of no use in a forward-only program. The program
  /// must be proved for rendezvous sends and `sends_in_flight`.
  /// Where this step's opening has run, it goes on behind it.
  void run(schedule::ValidProgram const& program, std::int64_t step, double loss_scale, Hooks const& hooks);

  /// Runs this rank's part of a step without a flush behind it, or, where one has begun, without one before it. Where
  /// `another_follows`, microbatches of later steps are begun, and next comes run() of the same stream, or abandon().
  /// Without, the stream must have lists for it (Stream::last). In `hooks` microbatch k m + i is microbatch i of the
  /// step k steps later. The stream must outlive the executor.
  void run(schedule::Stream const& stream, bool another_follows, std::int64_t step, double loss_scale,
           Hooks const& hooks);

  /// Runs this rank's opening and waits for no more than it does. Next comes run() of the same program and step, or
  /// abandon(). `openings`, of the program, must live until then.
  void open(schedule::ValidProgram const& program, schedule::Opening const& openings, std::int64_t step,
            Hooks const& hooks);
  /// Sees the messages of what has begun of the next step through, an opening or microbatches of a stream, and forgets
  /// it. Collective, as its beginning was.
  void abandon();
  bool has_opened() const { return opened_.program != nullptr; }

  /// OFFLOAD_F moves activations to this store, which must outlive the executor.
  void offload_into(ActivationStore& store) { store_ = &store; }

  /// These actions carry out E, S, T and G. They must outlive the executor.
  void divide_vocabulary(VocabularyActions& actions) { vocabulary_ = &actions; }

  /// Makes the communicator of the rounds, which programs with schedule::P2p::ring need. Collective over the pipeline.
  void make_ring(bool periodic) { start_.make_ring(periodic); }

  /// Time by phase in programs of training.
  PhaseTimes& times() { return times_; }
  /// From now on the actions of training are timed by kind, and GPUs are waited for after each.
  void time_actions() { times_actions_ = true; }
  ActionTimes const& action_times() const { return action_times_; }

  /// From now on the times of the actions of training go there; null: nowhere, which costs nothing.
  /// An opening that the former one has is forgotten there.
  void record_into(Recorder* recorder);
  Recorder* recorder() { return recorder_; }

private:
  /// The messages that read or write a slot.
  struct Messages {
    comm::Request recv_activation, recv_gradient, send_activation, send_gradient;
  };
  /// Facts about an action that the list alone does not say, found once per program.
  struct Detail {
    std::string text;                                 ///< the action as text, for the watchdog
    bool reads_previous = false, reads_next = false;  ///< slots of neighbouring stages on this rank
    bool completes = false;                           ///< schedule::completes_gradients
    bool gradients = false;                           ///< schedule::moves_gradients
    Call call = {};                                   ///< the call of a message that does not start by itself
  };
  struct ProgramRun;
  /// The actions of a step's program that have run ahead of it.
  struct Opened {
    schedule::Program const* program = nullptr;
    std::int64_t step = 0;
    std::size_t actions = 0;
    std::vector<schedule::Action> const* unmatched = nullptr;
    std::function<std::int64_t(int)> length;  ///< Hooks::length
    Recorder* recorder = nullptr;             ///< the recorder that has them
  };
  ProgramRun prepare(schedule::ValidProgram const& program, double loss_scale, Hooks const& hooks);
  /// Actions [first, end) of this rank.
  void run_actions(std::size_t first, std::size_t end, std::int64_t step, ProgramRun& run);
  /// The facts about a list of this rank's actions, which lives as long as the executor.
  std::vector<Detail> const& details(schedule::ValidProgram const& program,
                                     std::vector<schedule::Action> const& actions);
  /// How many steps early an action is that reads weights; 0 for any other.
  static int steps_early(schedule::Action const& action, ProgramRun const& run);
  void execute(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  void execute_recorded(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  void execute_timed(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  /// Adds an action to the times of its kind.
  void book(schedule::Op op, double seconds);
  void take_slot(schedule::Action const& action, ProgramRun const& run);
  /// A free slot gets the shape of the microbatch, and nothing that was reloaded into it comes any more.
  void shape_slot(schedule::Action const& action, ProgramRun const& run);
  /// Waits for what still travels from the buffer of a receive.
  void free_buffer(schedule::Action const& receive, ProgramRun const& run);
  /// True when nothing travels from the buffer of a receive.
  bool buffer_is_free(schedule::Action const& receive);
  /// Posts a receive, or puts it off: while the slot's last message still travels, the rank can compute. It is posted
  /// when the message is gone, but before anything on this slot, and before the rank waits for anything: so it waits
  /// for nothing in another order than the program says. With Execution::waits_inside it puts off none.
  void receive_or_defer(schedule::Action const& action, Call call, ProgramRun const& run);
  void move_activations(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  /// The slot of a stage that has the microbatch of `action`.
  int slot_of(int stage, schedule::Action const& action) const { return slot_of_.at({stage, action.microbatch}); }
  /// Takes the output of the previous stage on this rank as the input of `stage`, when it is there.
  void take_input(int stage, schedule::Action const& action, ProgramRun const& run);
  /// Waits until offloaded activations are out of a slot, or reloaded ones in it.
  void wait_for_store(schedule::Op move, int stage, schedule::Action const& action, ProgramRun const& run);
  void post_deferred(ProgramRun const& run);
  void flush_deferred(ProgramRun const& run);
  /// A forward and a backward that interleave (schedule::begins_pair): both wait for what they read, then both run.
  void execute_pair(std::size_t first, ProgramRun& run);
  /// Waits for what F, or B, I or W, reads.
  void prepare_forward(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  void prepare_backward(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  void forward(schedule::Action const& action, ProgramRun& run);
  void backward(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  /// Deferred receives that are due before an action.
  void before(schedule::Action const& action, ProgramRun const& run);
  /// The message of SEND_* or RECV_*, which can start now. A receive into a free slot shapes it.
  SlotMessage slot_message(schedule::Action const& action, ProgramRun const& run);
  /// Starts the rounds that may start, and those that must, before the action of this index.
  void start_rounds(std::size_t next, ProgramRun& run);
  /// E, S, T or G.
  void vocabulary(schedule::Action const& action, Detail const& detail, ProgramRun& run);
  /// Says that the gradients of the rank's part of the vocabulary, which lies with this stage, got all before a sum.
  void part_ready(schedule::Action const& action, ProgramRun const& run);
  void wait_for_all_sends(ProgramRun const& run);
  Messages& messages(schedule::Action const& action);
  StagePort& stage(schedule::Action const& action) { return *stages_.at(action.stage); }
  /// The weights that an action reads.
  static WeightChoice weights(schedule::Action const& action, ProgramRun const& run) {
    return {action.version, steps_early(action, run)};
  }
  /// Runs `work`, books its time less the time it waited for messages inside.
  template <class Work>
  void timed(Phase phase, Work&& work);
  /// A function that waits for an exchange which `action` reads, or whose buffer it fills.
  std::function<void(comm::Request&)> waits_for(schedule::Action const& action, ProgramRun const& run) {
    return [&action, &run, this](comm::Request& request) { timed_wait(request, action.op, action, run); };
  }
  /// Waits for a message of the slot of `action`.
  void timed_wait(comm::Request& request, schedule::Op message, schedule::Action const& action, ProgramRun const& run);

  std::map<int, StagePort*> stages_;
  comm::Communicator* pipeline_;
  MessageStart start_;
  device::ExecSpace exec_;
  std::function<double()> waited_;
  base::Polls const polls_;                           ///< const, so that no constructor forgets it
  std::map<std::pair<int, int>, Messages> messages_;  ///< one for each (stage, slot)
  /// By the number of the proof, and the list of actions.
  std::map<std::pair<std::uint64_t, std::vector<schedule::Action> const*>, std::vector<Detail>> details_;
  schedule::SlotNames slot_names_;              ///< the slots that the lists of the stream under way name
  std::map<std::pair<int, int>, int> slot_of_;  ///< the slot taken last by each (stage, microbatch)
  ActivationStore* store_ = nullptr;
  VocabularyActions* vocabulary_ = nullptr;
  std::deque<schedule::Action> deferred_;  ///< receives put off, in their order
  Opened opened_;
  PhaseTimes times_;
  bool times_actions_ = false;
  ActionTimes action_times_;
  Recorder* recorder_ = nullptr;
};

}  // namespace p3d::engine
