// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints of a training run: what a trainer's state is called in the file, how a file is compared with the input,
// where a run starts, and when a checkpoint is written. The file's format and the writing itself are in room io.

#include <p3d/base/timer.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/checkpoint_writer.hpp>
#include <p3d/engine/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace p3d::run {

/// The header of a checkpoint, which is what the file says beside the arrays. Its count of tokens is right where every
/// sample has model.seq_len inputs; where samples are shorter the trainer knows the count (Trainer::tokens_done).
io::CheckpointHeader checkpoint_header(config::Config const& config, std::int64_t step, std::uint64_t data_hash,
                                       std::string const& origin, optim::LossScaleState const& loss_scale,
                                       io::StoredTokenizer const& tokenizer);
/// The rows of the file's table of parameters, one for each parameter of the model, in model order.
std::vector<io::TableRow> checkpoint_table(layout::ParamTable const& table);

/// How a file differs from the run that would go on from it, as lines "model.hidden: 96 in the checkpoint, 128 in the
/// input".
struct Differences {
  std::vector<std::string> forbidden;  ///< another model, other data, another precision: going on would be another run
  std::vector<std::string> noted;      ///< allowed changes, for the log
};
/// The words of an error about data that are not those of the file's run, whose hash is `data_hash`.
std::string data_difference(io::CheckpointHeader const& file, std::uint64_t data_hash);
/// Whether gradients of the file's run were late by the same updates, layer by layer (pipeline.delays), so that its
/// versions of the weights are those that the run reads.
bool has_same_delays(io::CheckpointHeader const& file, config::Config const& config);

/// Compares the header of a file with the input of a run. With Load::weights only the model must agree. The layout, the
/// folders and what is only printed are never compared.
Differences compare(io::CheckpointHeader const& file, config::Config const& config, config::Load load,
                    std::uint64_t data_hash, io::StoredTokenizer const& tokenizer);

/// Reads a file, all or its weights, into the trainer; returns the file's header. Throws base::Error on every rank:
/// with ExitCode::bad_input and all differences when the file does not fit, with run_failed when it is damaged (the
/// trainer's numbers are then not to be used). Collective.
io::CheckpointHeader restore(engine::AnyTrainer& trainer, std::string const& path, config::Load load,
                             io::StoredTokenizer const& tokenizer = {});

/// The start of a run: a step, from a checkpoint or anew.
struct Start {
  std::int64_t step = 0;
  std::string origin;         ///< the weights that the run began with: io::CheckpointHeader::origin of its checkpoints
  bool own_file = false;      ///< true: it starts from a checkpoint of this run's name and folder
  io::ModelFiles files = {};  ///< files beside the model that the run began with, carried by its checkpoints; on rank 0
};

/// Reads the files that lie beside a model in Hugging Face form, such as its tokenizer. A warning names the ones that
/// are too large to be carried by checkpoints.
io::ModelFiles files_of_model(std::string const& folder);

/// Does what checkpoint.resume and checkpoint.load say. With "auto", damaged files are named and skipped. A run
/// that begins with a file, or with its weights, goes on from its own newest checkpoint where it has one: the origin in
/// that checkpoint says that it comes from the file. Refuses to start behind any other valid checkpoint of the same
/// name and folder. Collective.
Start resume(engine::AnyTrainer& trainer, io::StoredTokenizer const& tokenizer);

/// The time that a run keeps for its last checkpoint. Until a write has been timed it assumes a slow disk on every node
/// that writes, and keeps a quarter of the run's time at most: a run goes on however large its model is.
class TimeToSave {
public:
  /// `bytes`: size of a checkpoint. `writers`: nodes that write at once. `reads_back`: a file is read once more behind
  /// the write. `left`: seconds until the run must have ended; may be infinite.
  TimeToSave(double bytes, int writers, bool reads_back, double left);
  /// A checkpoint took so many seconds, with its reading back.
  void took(double seconds) { longest_ = std::max(longest_, seconds); }
  /// Seconds to keep. Where another checkpoint is `being_written`, it is waited for first.
  double seconds(bool being_written) const;

private:
  double assumed_ = 0.0;  ///< seconds to keep until a write has been timed
  double longest_ = 0.0;  ///< seconds of the longest write; 0: none yet
};

/// Writes the checkpoints of a run: decides when one is due, hands the state to io::CheckpointWriter, and reports.
class Checkpointing {
public:
  /// `clock`: the program's wall time counts from here. `before_commit` (rank 0): see io::CheckpointWriter::Options.
  /// Collective.
  Checkpointing(engine::AnyTrainer& trainer, Start start, io::StoredTokenizer tokenizer, base::Stopwatch clock,
                std::function<void()> before_commit);
  /// With checkpoint.at_start, begins to write the state before the first step. Collective.
  void before_first_step();
  /// Waits for the checkpoint that is being written, so that no .part file is left. Collective.
  void finish();

  /// The number to pass to Trainer::step. It says on rank 0 whether a checkpoint by time is due and whether time is
  /// nearly up, and is 0 on the others: so the root rank's clock decides for all.
  double vote();
  /// True when time is nearly up: the run must save and stop now. The same on every rank.
  bool time_is_up(engine::StepResult const& result) const;
  /// True on rank 0 when time is nearly up, by its clock: for a pass between two steps, in which no vote is counted.
  bool time_is_up_here() const;
  /// True when checkpoint.every asks for a checkpoint of a step.
  bool is_due(std::int64_t step) const { return options_.on() && options_.every > 0 && step % options_.every == 0; }
  /// Begins, moves along or reports a checkpoint. Called after a step, when its row of the history is written.
  /// Collective.
  void after_step(engine::StepResult const& result);
  /// Writes the state as it is, unless that is done already, and waits. Returns false when failed(). Collective.
  bool save_and_wait();
  /// True when the state as it is lies in a valid file, this run's or the one that it began with. The same on every
  /// rank.
  bool up_to_date() const { return options_.on() && saved_step_ == trainer_->steps_done(); }
  /// The error text of a run that ends although it is not up_to_date().
  std::string not_saved() const;
  /// True when a checkpoint could not be written and checkpoint.on_error is "stop"; the error is printed by then. The
  /// same on every rank.
  bool failed() const { return !failure_.empty(); }
  /// The text of that error; "" without one.
  std::string const& failure() const { return failure_; }
  /// One line about the memory and the times of checkpoints, for the log.
  std::string describe() const;

private:
  /// Begins a checkpoint of the state as it is; waits for its end where nothing may go on meanwhile. Collective.
  void start_writing();
  /// True when a checkpoint and so many seconds take the time that is left.
  bool needs_the_rest_of_time(double seconds) const;
  /// True when the file of saved_step_ still exists; a user may have deleted it. Collective.
  bool saved_file_is_there();
  /// Logs the end of a write, good or bad, and deletes checkpoints beyond checkpoint.keep.
  void report(io::WriteResult const& result);

  engine::AnyTrainer* trainer_;
  config::Checkpoint options_;
  std::string run_name_;
  io::CheckpointWriter writer_;
  Start start_;
  io::StoredTokenizer tokenizer_;
  base::Stopwatch clock_;                         ///< started with the program
  double deadline_ = 0.0;                         ///< seconds on clock_; infinite without a limit
  base::Stopwatch since_last_;                    ///< restarted at each checkpoint, for checkpoints by time
  double step_begin_ = 0.0, longest_step_ = 0.0;  ///< seconds: begin on clock_, and duration
  double bytes_ = 0.0;                            ///< size of a checkpoint; 0 where there are none
  TimeToSave time_to_save_;                       ///< used by rank 0, whose clock decides
  std::int64_t saved_step_ = -1;                  ///< step of the newest valid file, or of the start; -1: none
  std::int64_t given_up_step_ = -1;               ///< step whose checkpoint could not be written; -1: none
  bool wrote_ = false;                            ///< this run wrote the file of saved_step_
  std::string failure_;                           ///< text of the error that ends the run
};

}  // namespace p3d::run
