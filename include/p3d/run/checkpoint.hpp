// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints of a training run: what a trainer's state is called in the file, when one is written, where a run starts.

#include <p3d/base/timer.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/checkpoint_writer.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace p3d::run {

/// What the file says beside the arrays. Of tokens as many as samples of model.seq_len inputs have; where samples are
/// shorter the trainer knows (Trainer::tokens_done).
io::CheckpointHeader checkpoint_header(config::Config const& config, std::int64_t step, std::uint64_t data_hash,
                                       std::string const& origin, optim::LossScaleState const& loss_scale,
                                       io::StoredTokenizer const& tokenizer);
std::vector<io::TableRow> checkpoint_table(layout::ParamTable const& table);
bool has_moments(config::Config const& config);

/// How a file differs from the run that would go on from it, as lines "model.hidden: 96 in the checkpoint, 128 in the
/// input".
struct Differences {
  std::vector<std::string> forbidden;  ///< another model, other data, another precision: going on would be another run
  std::vector<std::string> noted;      ///< allowed changes, for the log
};
/// With Load::weights only the model must agree. The layout, the folders and what is only printed are never compared.
Differences compare(io::CheckpointHeader const& file, config::Config const& config, config::Load load,
                    std::uint64_t data_hash, io::StoredTokenizer const& tokenizer);

/// Reads a file, all or its weights, into the trainer; returns what it says of the run. Throws base::Error on every
/// rank: with ExitCode::bad_input and all differences when it does not fit, with run_failed when it is damaged (the
/// trainer's numbers are then not to be used). Collective.
template <class P>
io::CheckpointHeader restore(engine::Trainer<P>& trainer, std::string const& path, config::Load load,
                             io::StoredTokenizer const& tokenizer = {});

/// Where a run starts.
struct Start {
  std::int64_t step = 0;
  std::string origin;         ///< io::CheckpointHeader::origin of its checkpoints
  bool own_file = false;      ///< a checkpoint of this run's name and folder
  io::ModelFiles files = {};  ///< beside the model that the run began with, which its checkpoints carry; on rank 0
};

/// The files beside a model in Hugging Face form. Those that are too large are told in a warning.
io::ModelFiles files_of_model(std::string const& folder);

/// Does what checkpoint.resume and checkpoint.load say. Files that are damaged are named and passed over with "auto".
/// A run that begins with a file, or with its weights, goes on from its own newest checkpoint where it has one: that
/// says by its origin that it comes from there. Refuses to start behind any other valid checkpoint of the same name and
/// folder. Collective.
template <class P>
Start resume(engine::Trainer<P>& trainer, io::StoredTokenizer const& tokenizer);

/// Writes the checkpoints of a run.
template <class P>
class Checkpointing {
public:
  /// `clock`: wall time counts from here. `before_commit` (rank 0): see io::CheckpointWriter::Options. Collective.
  Checkpointing(engine::Trainer<P>& trainer, Start start, io::StoredTokenizer tokenizer, base::Stopwatch clock,
                std::function<void()> before_commit);
  /// With checkpoint.at_start: begins to write the state before the first step. Collective.
  void before_first_step();
  /// Ends what is being written, so that no .part file stays. Collective.
  void finish();

  /// What to give to Trainer::step: the root rank's clock decides for all.
  double vote();
  /// Whether time is nearly up.
  bool time_is_up(engine::StepResult const& result) const;
  /// After a step whose row of the history is written: begins, moves along or reports a checkpoint. Collective.
  void after_step(engine::StepResult const& result);
  /// Writes the state as it is, unless that is done, and waits. False when it failed(). Collective.
  bool save_and_wait();
  /// The state as it is lies in a valid file, this run's or the one that it began with. The same on every rank.
  bool up_to_date() const { return options_.on() && saved_step_ == trainer_->steps_done(); }
  /// The error of a run that ends although it is not up_to_date().
  std::string not_saved() const;
  /// A checkpoint could not be written and checkpoint.on_error is "stop"; the error is printed. The same on every rank.
  bool failed() const { return failed_; }
  /// One line about the memory and the times, for the log.
  std::string describe() const;

private:
  void start_writing();
  bool saved_file_is_there();
  void report(io::WriteResult const& result);

  engine::Trainer<P>* trainer_;
  config::Checkpoint options_;
  std::string run_name_;
  io::CheckpointWriter writer_;
  Start start_;
  io::StoredTokenizer tokenizer_;
  base::Stopwatch clock_;       ///< of the program
  double deadline_ = 0.0;       ///< seconds on clock_; infinite without a limit
  base::Stopwatch since_last_;  ///< last checkpoint by time
  double step_begin_ = 0.0, longest_step_ = 0.0;
  double longest_write_ = 0.0;
  double write_estimate_ = 0.0;
  std::int64_t saved_step_ = -1;
  std::int64_t given_up_step_ = -1;
  bool wrote_ = false;  ///< saved_step_ is of a file that this run wrote
  bool failed_ = false;
};

}  // namespace p3d::run
