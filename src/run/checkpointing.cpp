// SPDX-License-Identifier: Apache-2.0
// When checkpoints are written: every so many steps, every so many minutes, before time is up, and at the end.
// A decision by the clock must be the same on all ranks. Rank 0 alone looks at its clock and votes; the vote, a number,
// travels in the all-reduce that each step makes anyway, and its sum tells every rank: 0 nothing is due, 1 a checkpoint
// by time, 2 the end, 3 both.

#include <p3d/run/checkpoint.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/optimizer_state.hpp>
#include <p3d/device/pinned.hpp>
#include <p3d/io/checkpoint_folder.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <utility>

#include "run_files.hpp"

namespace p3d::run {

namespace {

// The two parts of rank 0's vote; their sum is unique.
constexpr double vote_period = 1.0, vote_deadline = 2.0;

/// Seconds that are left by run.time_limit (of which `used` are gone) or, without it, by the end time that Slurm gives
/// its jobs; infinite without either.
double seconds_left(config::Run const& run, double used) {
  double left = std::numeric_limits<double>::infinity();
  if (run.time_limit.seconds > 0) return static_cast<double>(run.time_limit.seconds) - used;
  if (char const* end = std::getenv("SLURM_JOB_END_TIME")) {
    double const at = std::strtod(end, nullptr);
    if (at > 0) left = at - static_cast<double>(std::time(nullptr));
  }
  return left;
}

/// How the writer gets the arrays to the file. No copy is needed where training waits anyway.
io::WriteBy way_of(config::Checkpoint const& c) {
  if (!c.async) return io::WriteBy::by_root;
  return c.between_steps() ? io::WriteBy::copied : io::WriteBy::direct;
}

/// Speed of a slow disk, which is assumed until a write has been timed.
constexpr double assumed_bytes_per_second = 100e6;

/// Size of a checkpoint without its descriptions; 0 where none are written.
double bytes_of(engine::AnyTrainer const& trainer) {
  auto const& c = trainer.config();
  if (!c.checkpoint.on()) return 0.0;
  return static_cast<double>(trainer.plan().table.num_parameters()) *
         static_cast<double>(io::size_of(io::element_of(c.run.precision))) *
         static_cast<double>(1 + config::checkpoint_state(c).size());
}

/// Nodes that write a checkpoint at once.
int writers_of(config::Checkpoint const& c, int ranks) {
  if (way_of(c) == io::WriteBy::by_root) return 1;
  auto const on_a_node = std::max(1, comm::node_share().ranks);
  return (ranks + on_a_node - 1) / on_a_node;
}

}  // namespace

TimeToSave::TimeToSave(double bytes, int writers, bool reads_back, double left)
    : assumed_(std::min((reads_back ? 2.0 : 1.0) * bytes / (assumed_bytes_per_second * writers),
                        0.25 * std::max(left, 0.0))) {}

double TimeToSave::seconds(bool being_written) const {
  return (being_written ? 2.0 : 1.0) * (longest_ > 0.0 ? 1.5 * longest_ : assumed_);
}

Checkpointing::Checkpointing(engine::AnyTrainer& trainer, Start start, io::StoredTokenizer tokenizer,
                             base::Stopwatch clock, std::function<void()> before_commit)
    : trainer_(&trainer),
      options_(trainer.config().checkpoint),
      run_name_(trainer.config().run.name),
      writer_(trainer.mesh().world(),
              {.buffer_bytes = options_.buffer_mb << 20,
               .way = way_of(options_),
               .verify = options_.keep > 0,
               .before_commit = std::move(before_commit),
               .memory = [](std::size_t bytes) { return device::pinned_memory(bytes, "p3d::run::background_copy"); }}),
      start_(std::move(start)),
      tokenizer_(std::move(tokenizer)),
      clock_(clock),
      deadline_(clock.seconds() + seconds_left(trainer.config().run, clock.seconds())),
      bytes_(bytes_of(trainer)),
      time_to_save_(bytes_, writers_of(options_, trainer.mesh().world().size()), options_.keep > 0,
                    deadline_ - clock.seconds()) {
  auto const& c = trainer.config();
  saved_step_ = trainer.steps_done();
  step_begin_ = clock_.seconds();
  if (!options_.on()) return;
  auto& world = trainer.mesh().world();
  auto const arrays = config::checkpoint_state(c);
  comm::agree(world, "take the memory for checkpoints",
              [&] { writer_.reserve(trainer.checkpoint_parts(arrays), io::element_of(c.run.precision)); });
  comm::agree_on_root(world, [&] {
    io::apart([&] {
      io::make_folder(options_.dir);
      for (auto const& path : io::remove_unfinished(options_.dir, run_name_))
        base::log_root("Removed an unfinished checkpoint: " + path);
    });
  });
}

std::string Checkpointing::describe() const {
  if (!options_.on()) return "Checkpoints: none (checkpoint.every = 0); what is not finished cannot be resumed";
  auto const kept = std::isfinite(deadline_) ? fmt::format("; {} of the time that is left are kept for the last one",
                                                           base::human_seconds(time_to_save_.seconds(false)))
                                             : "";
  if (!options_.between_steps())
    return fmt::format("Checkpoints: at the end and before a stop, {}, into {}{}", base::human_bytes(bytes_),
                       from_here(options_.dir), kept);
  auto const when =
      options_.every > 0 ? fmt::format("every {} step(s)", options_.every) : "every " + to_string(options_.period);
  return fmt::format("Checkpoints: {} into {}, {} each, {}{}{}", when, options_.dir, base::human_bytes(bytes_),
                     options_.async ? fmt::format("written while training goes on from a copy of {} on rank 0",
                                                  base::human_bytes(static_cast<double>(writer_.copy_bytes())))
                                    : fmt::format("written by rank 0 alone, {} MiB at a time", options_.buffer_mb),
                     options_.keep > 0 ? fmt::format("; the newest {} are kept", options_.keep) : "", kept);
}

double Checkpointing::vote() {
  double const now = clock_.seconds();
  longest_step_ = std::max(longest_step_, now - step_begin_);
  step_begin_ = now;
  if (trainer_->mesh().world().rank() != 0) return 0.0;
  double vote = 0.0;
  if (options_.period.seconds > 0 && since_last_.seconds() >= static_cast<double>(options_.period.seconds))
    vote += vote_period;
  // Time is needed for the step that begins now and one more that is as slow. Where steps follow each other without a
  // flush, the sum of this vote is known when more have begun.
  double const steps = 2.0 + trainer_->plan().results_late(trainer_->config());
  if (needs_the_rest_of_time(steps * longest_step_)) vote += vote_deadline;
  return vote;
}

bool Checkpointing::needs_the_rest_of_time(double seconds) const {
  double const now = clock_.seconds();
  double const write = options_.on() ? time_to_save_.seconds(writer_.busy()) : 0.0;
  double const spare = std::clamp(0.05 * (deadline_ - now), 0.2, 60.0);
  return now + seconds + write + spare >= deadline_;
}

bool Checkpointing::time_is_up_here() const {
  return trainer_->mesh().world().rank() == 0 && needs_the_rest_of_time(longest_step_);
}

void Checkpointing::before_first_step() {
  if (!options_.on() || !options_.at_start || trainer_->steps_done() != 0 || start_.own_file) return;
  saved_step_ = -1;
  start_writing();
}

bool Checkpointing::time_is_up(engine::StepResult const& result) const { return result.votes >= vote_deadline; }

void Checkpointing::after_step(engine::StepResult const& result) {
  if (writer_.busy()) {
    if (auto const done = writer_.poll()) report(*done);
  }
  bool const stop = time_is_up(result);
  bool const by_time = result.votes == vote_period || result.votes == vote_period + vote_deadline;
  if (options_.on() && !stop && !failed() && (by_time || is_due(result.step))) start_writing();
}

void Checkpointing::start_writing() {
  finish();  // one checkpoint at a time: the disk is slower than checkpoint.every
  auto const& c = trainer_->config();
  auto const step = trainer_->steps_done();
  if (step == saved_step_ || failed()) return;
  trainer_->require_finite_weights();
  since_last_.reset();
  auto header =
      checkpoint_header(c, step, trainer_->source().hash(), start_.origin, trainer_->loss_scale(), tokenizer_);
  header.tokens = trainer_->tokens_done();
  auto const arrays = config::checkpoint_state(c);
  auto parts = trainer_->checkpoint_parts(arrays);
  header.versions_made = trainer_->versions_made();
  writer_.start(io::checkpoint_path(options_.dir, run_name_, step), header, checkpoint_table(trainer_->plan().table),
                arrays, std::move(parts), start_.files);
  if (!options_.async || !options_.between_steps()) finish();
}

void Checkpointing::finish() {
  if (writer_.busy()) report(writer_.finish());
}

bool Checkpointing::saved_file_is_there() {
  std::int64_t there = 1;
  if (trainer_->mesh().world().rank() == 0) {
    std::error_code unknown;
    auto const path = io::checkpoint_path(options_.dir, run_name_, saved_step_);
    there = std::filesystem::exists(path, unknown) || unknown ? 1 : 0;
    if (there == 0) base::warn_root(path + " was deleted while the run went on: it is written again");
  }
  trainer_->mesh().world().broadcast(&there, 1, comm::Type::int64, 0).wait();
  return there == 1;
}

bool Checkpointing::save_and_wait() {
  if (!options_.on()) return true;
  finish();
  if (!failed() && saved_step_ == trainer_->steps_done() && wrote_ && !saved_file_is_there()) saved_step_ = -1;
  if (!failed() && saved_step_ != trainer_->steps_done() && given_up_step_ != trainer_->steps_done()) start_writing();
  finish();
  return !failed();
}

std::string Checkpointing::not_saved() const {
  auto const newest = saved_step_ > 0 ? fmt::format("the newest is of step {}", saved_step_) : "there is none yet";
  return "the last checkpoint could not be written\n" +
         base::format({.expected = fmt::format("a checkpoint of step {}, the last one", trainer_->steps_done()),
                       .found = newest,
                       .where = options_.dir,
                       .fix = "mend what the warning above says, and start the same command again"});
}

void Checkpointing::report(io::WriteResult const& r) {
  if (r.error) {
    given_up_step_ = r.step;
    auto text = *r.error;
    if (saved_step_ > 0) text.fix += fmt::format("; the checkpoint of step {} is intact", saved_step_);
    if (options_.on_error == config::OnError::stop) {
      failure_ = "no checkpoint of step " + std::to_string(r.step) + "\n" + base::format(text);
      base::error_once(failure_);
      return;
    }
    base::warn_root(
        fmt::format("no checkpoint of step {}, the run goes on (checkpoint.on_error)\n{}", r.step, base::format(text)));
    return;
  }
  saved_step_ = r.step;
  wrote_ = true;
  time_to_save_.took(r.seconds + r.verify_seconds);
  base::log_root(fmt::format("Checkpoint of step {}: {} in {}, training held for {}: {}", r.step,
                             base::human_bytes(static_cast<double>(r.bytes)), base::human_seconds(r.seconds),
                             base::human_seconds(r.held_seconds), r.path));
  if (!r.verified || trainer_->mesh().world().rank() != 0) return;
  try {
    io::apart([&] { io::prune_checkpoints(options_.dir, run_name_, r.step, options_.keep, options_.resume); });
  } catch (base::Error const& e) {
    base::warn_root(e.what());  // too many checkpoints are no reason to stop
  }
}

}  // namespace p3d::run
