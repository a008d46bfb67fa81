// SPDX-License-Identifier: Apache-2.0
// A run from its first line of output to its exit code. run() does what is the same for every precision: time limits,
// folders, locks, placement of threads, the path of messages. train() is compiled once for each precision (the policy
// P) and does the rest in this order:
//   1. plan and describe, before any memory is taken;
//   2. make the trainer, restore a checkpoint or load weights, open the files of the run;
//   3. for each step: step, validation, row of metrics.csv, checkpoint, line of progress;
//   4. the last checkpoint, the summary, a sample of the model.
// Work that may fail on one rank alone stands inside comm::agree or comm::agree_on_root: then all ranks leave with the
// same error instead of waiting for each other.
#include <p3d/run/run.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/median.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/base/version.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/text/token_origin.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/packing.hpp>
#include <p3d/engine/memory_limits.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/plan/layout_choice.hpp>
#include <p3d/report/add_to_summary.hpp>
#include <p3d/report/ceiling.hpp>
#include <p3d/report/describe.hpp>
#include <p3d/report/attention_trial.hpp>
#include <p3d/report/gemm_trial.hpp>
#include <p3d/report/monitor.hpp>
#include <p3d/report/placement.hpp>
#include <p3d/report/progress.hpp>
#include <p3d/report/terminal.hpp>
#include <p3d/report/tracing.hpp>
#include <p3d/run/check_files.hpp>
#include <p3d/run/checkpoint.hpp>
#include <p3d/run/signals.hpp>
#include <p3d/run/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "data_ahead.hpp"
#include "gpu_aware.hpp"
#include "expert_file.hpp"
#include "run_files.hpp"
#include "run_locks.hpp"
#include "timer_file.hpp"
#include "shared_folder.hpp"
#include "step_results.hpp"
#include "summary_file.hpp"

namespace p3d::run {

namespace {

/// The first line of the log: version, ranks, and what each of them works on.
std::string machine(comm::Communicator const& world) {
  auto const node = comm::node_share();
  return fmt::format("p3d {}: {}, {} on this node with {}, {}, {} a rank\n", base::version_with_hash(),
                     base::counted(world.size(), "rank"), node.ranks, base::counted(node.cores, "core"),
                     device::backend_name(), base::counted(device::host_threads(), "thread"));
}

/// The windows that a validation loss is the mean of: "16 of 1024 windows". A pass over a small split begins again at
/// its start; where it does not end with the split, some windows count more often than others: "96 reads of 17
/// windows". Each source of a blend begins again on its own: "16 reads of 9 of 36 windows". (p3d eval reads each window
/// once.)
std::string validation_windows(config::Config const& c, data::Sampler const& sampler) {
  auto const all = sampler.num_eval_windows(), reads = c.run.eval_batches * c.batch.global;
  auto const read = sampler.eval_reads(reads);
  auto const windows = base::counted(all, c.batch.variable ? "sample" : "window");
  if (read.windows == all && !read.evenly) return fmt::format("{} reads of {}", reads, windows);
  // The whole split, read evenly, needs no number of reads; of a part it shows what a blend left out.
  bool const repeats = read.windows < all && reads > read.windows;
  return fmt::format("{}{} of {}", repeats ? fmt::format("{} reads of ", reads) : "", read.windows, windows);
}

/// A warning where a validation pass reads its split ten times or more, or "".
std::string note_about_validation(config::Config const& c, data::Sampler const& sampler) {
  auto const all = sampler.num_eval_windows(), reads = c.run.eval_batches * c.batch.global;
  if (all == 0 || reads < 10 * all) return "";
  return fmt::format("run.eval_batches = {} reads each of {} {} times; run.eval_batches = {} reads each once",
                     c.run.eval_batches,
                     base::counted(all, c.batch.variable ? "validation sample" : "validation window"), reads / all,
                     (all + c.batch.global - 1) / c.batch.global);
}

/// The line that says where every key is written with its value, as seen from the folder in which the run was started.
std::string input_line(config::Config const& c) {
  return fmt::format("Input: every key is in {}/resolved.toml (--verbose prints them)", from_here(c.run.output_dir));
}

/// The exit code of a run that did its steps, or was `stopped` before. `saved`: a checkpoint holds its state.
base::ExitCode exit_code_of(config::Config const& c, bool stopped, bool saved, bool history_complete) {
  if (c.checkpoint.on() && !saved) return base::ExitCode::checkpoint_failed;
  if (stopped) return saved ? base::ExitCode::interrupted : base::ExitCode::stopped_unsaved;
  return history_complete ? base::ExitCode::ok : base::ExitCode::run_failed;
}

/// The end of the message of a run that was stopped.
std::string how_to_go_on(config::Config const& c, bool saved) {
  if (!c.checkpoint.on()) return ": nothing was saved (checkpoint.every = 0); the same command starts over";
  if (!saved) return ": this step was not saved";
  return c.checkpoint.resume == "none" ? ": the same command with checkpoint.resume=auto goes on from here"
                                       : ": the same command goes on from here";
}

/// Bytes that the processes of all ranks use, of GPU memory where they use GPUs; 0 where the system does not say.
/// Collective.
double memory_of_all(comm::Communicator& world) {
  auto const gpu = device::gpu_memory();
  auto const mine = device::on_host() ? base::proportional_set_size() : gpu.total - gpu.free;
  double const least = collectives::all_reduce(world, mine > 0 ? 0.0 : 1.0);
  double const sum = collectives::all_reduce(world, static_cast<double>(mine));
  return least > 0.0 ? 0.0 : sum;
}

/// True when there is a row of the step at which the run starts, without a validation loss. Collective.
bool row_lacks_evaluation(std::optional<RunFiles> const& files, comm::Communicator& world) {
  std::int64_t lacks = files && files->lacks_evaluation() ? 1 : 0;
  world.broadcast(&lacks, 1, comm::Type::int64, 0).wait();
  return lacks == 1;
}

/// Prints an error and returns false when rows of metrics.csv could not be written. Collective.
bool history_is_complete(std::optional<RunFiles>& files, std::string& reason, comm::Communicator& world) {
  std::int64_t complete = 1;
  if (files) {
    std::string why;
    io::apart([&] { why = files->missing(); });
    if (!why.empty()) base::error_once(reason = "rows of the run's history are missing\n" + why);
    complete = why.empty() ? 1 : 0;
  }
  world.broadcast(&complete, 1, comm::Type::int64, 0).wait();
  return complete == 1;
}

/// The text that [sample] asks for. Collective.
std::string sample_text(engine::AnyTrainer& trainer, text::Tokenizer const& tokenizer) {
  auto const& s = trainer.config().sample;
  TextOptions o;
  o.draw.tokens = s.tokens;
  o.draw.temperature = s.temperature;
  o.draw.top_k = s.top_k;
  o.draw.top_p = s.top_p;
  o.draw.seed = trainer.config().run.seed;
  o.stop = s.stop;
  return continue_texts(trainer, tokenizer, {s.prompt}, o).front().text;
}

/// The run with policy P, from the plan to the exit code. `start`: the program's clock. Collective.
template <class P>
base::ExitCode train(config::Config const& c, comm::Communicator& world, base::Stopwatch start, SummaryFile& file,
                     SignalGuard& signals, bool verbose, schedule::DrawTimelines const& draw) {
  auto& summary = file.contents();
  bool const root = world.rank() == 0;
  auto plan = comm::agree(world, "plan the run", [&] { return engine::make_run_plan(c); });
  if (verbose) base::log_root(config::canonical_toml(c));
  auto const described = machine(world) + report::describe(c, plan, verbose && root);
  base::log_root(described.substr(0, described.size() - 1));  // the table of memory is printed before anything is taken
  auto const& memory = plan.memory_of(plan.grid.coordinates(world.rank()).pp);
  // The copy of a checkpoint is in host memory, so it counts on host backends alone. The GPU's context exists before
  // the model is made, and so does the memory of a vendor's attention: both are in memory_before, and no part of the
  // prediction that later use is compared with.
  auto const needed = memory.total() + (device::on_host() ? memory.checkpoint_copy : 0);
  engine::require_room(needed, world);
  if (!device::on_host()) engine::require_memory(memory.offloaded_to_host + memory.checkpoint_copy, world);
  auto const attention_bytes = engine::platform().fused_attention ? plan::fused_attention_bytes(c) : 0;
  auto const predicted = needed - (device::on_host() ? 0 : plan::gpu_context_bytes + attention_bytes);
  auto const tokenizer = comm::agree(world, "open the tokenizer", [&] { return open_tokenizer(c, root); });
  comm::agree_on_root(world, [&] {
    if (auto const note = text::require_tokenizer(c, *tokenizer.tokenizer); !note.empty()) base::log_root(note);
    if (auto const note = note_about_data(c); !note.empty()) base::warn_root(note);
    if (auto const note = note_about_tokenizer(c, *tokenizer.tokenizer); !note.empty()) base::warn_root(note);
  });
  report::add_plan(summary, c, plan);
  // The choice of GEMMs runs before the trainer takes its memory.
  double const ceiling = summary.ceiling_flops = report::choose_gemms<P>(c, world);
  if (device::on_host() && c.run.precision == config::Precision::fp32) {
    auto const gemms = report::describe_gemms();
    base::log_root("fp32 GEMMs (linalg.host): " + gemms);
    summary.program += "\nfp32 GEMMs      " + gemms;
  }
  if (auto const attention = report::choose_attention<P>(c, world); !attention.empty()) base::log_root(attention);
  double const memory_before = memory_of_all(world);
  engine::Trainer<P> trainer(c, std::move(plan), world);
  Start const origin = resume(trainer, tokenizer.stored);
  std::int64_t const first_step = origin.step;
  bool const evaluates = c.run.eval_batches > 0 && trainer.sampler().num_eval_windows() > 0;
  DataAhead<P> data(trainer, evaluates ? c.run.eval_batches : 0);
  std::optional<RunFiles> files;
  comm::agree_on_root(world, [&] { io::apart([&] { files.emplace(c, first_step); }); });
  if (world.size() > 1)
    base::log_root(fmt::format("All-reduce (comm.allreduce): {}", trainer.mesh().describe_all_reduce()));
  summary.data = trainer.source().describe();
  summary.training_windows = trainer.sampler().num_train_windows();
  summary.validation_windows = trainer.sampler().num_eval_windows();
  summary.memory_predicted = collectives::all_reduce(world, static_cast<double>(predicted));
  file.begin(first_step);
  base::log_root(describe_data(trainer.source(), trainer.sampler(), c));
  if (auto const note = note_about_validation(c, trainer.sampler()); !note.empty()) base::warn_root(note);
  if ((c.data.pack || c.batch.variable) && root) {
    auto const first = engine::deal_batch(c, trainer.sampler(), 0).balance;
    base::log_root(engine::describe(first, c));
    summary.tokens_per_step = first.tokens;
  }

  Checkpointing checkpoints(trainer, origin, tokenizer.stored, start, [&files] { files->flush(); });
  base::log_root(input_line(c));
  base::log_root(checkpoints.describe());
  if (first_step >= c.run.steps)
    base::log_root(
        fmt::format("No step is left: this run has done {}, and run.steps = {}. A larger run.steps goes on, "
                    "another run.name begins a new run",
                    base::counted(first_step, "step"), c.run.steps));
  base::log_root("");
  signals.steps_begin();
  if (collectives::all_reduce(world, stop_signal() != 0 ? 1.0 : 0.0) > 0.0) {
    base::log_root("Stopped by a signal before the first step (exit code 75): the same command starts again");
    return base::ExitCode::interrupted;
  }
  checkpoints.before_first_step();
  std::optional<ExpertFile> expert_file;
  if (c.model.moe.on())
    comm::agree_on_root(
        world, [&] { io::apart([&] { expert_file.emplace(c.run.output_dir, first_step, c.model.moe.experts); }); });
  std::optional<TimerFile> timers;
  if (c.timers.level > 0)
    comm::agree_on_root(world, [&] { io::apart([&] { timers.emplace(c.run.output_dir, first_step, true); }); });
  if (c.timers.level > 0 && !timers) timers.emplace(c.run.output_dir, first_step, false);
  bool between_steps = false;  // a validation pass or a sample, in which time may run out
  trainer.stop_when(
      [&] { return stop_signal() != 0 || data.found_bad() || (between_steps && checkpoints.time_is_up_here()); });
  report::Tracing tracing(trainer, draw);
  report::Progress progress(c.run.steps, c.run.log_every, root ? report::terminal_columns() : 0);
  base::Stopwatch whole;
  auto const tokens_before = trainer.tokens_done();
  auto const evaluates_after = [&](std::int64_t step) {
    return evaluates && (step == c.run.steps || (c.run.eval_every > 0 && step % c.run.eval_every == 0));
  };
  double first_loss = 0.0, last_loss = 0.0;
  std::optional<double> eval_loss;
  std::int64_t done = first_step;
  bool stopped = false;
  auto const failed = [&summary](base::ExitCode code, std::string const& text) {
    summary.reason = text;
    return code;
  };
  std::vector<double> step_seconds;
  double in_steps = 0.0, on_disk = 0.0;
  auto const evaluate = [&] {
    base::Stopwatch evaluating;
    between_steps = true;
    eval_loss = trainer.evaluate(c.run.eval_batches);
    between_steps = false;
    if (timers) timers->add("evaluation", evaluating.seconds());
    if (!trainer.stopped_early()) return;
    eval_loss.reset();
    stopped = true;
  };
  // An earlier start was stopped in this validation pass, or ended after it.
  if (evaluates && first_step > 0 &&
      (done >= c.run.steps || (evaluates_after(done) && row_lacks_evaluation(files, world)))) {
    evaluate();
    if (stopped && stop_signal() == 0 && checkpoints.time_is_up_here())  // each start would begin it again
      base::warn_root(
          fmt::format("the validation after step {} does not fit into run.time_limit: raise the limit, or "
                      "lower run.eval_batches ({})",
                      done, c.run.eval_batches));
    if (files && eval_loss) io::apart([&] { files->add_evaluation(*eval_loss); });
  }
  bool const flows = trainer.plan().stream.has_value();
  StepResults<P> steps(
      trainer,
      [&] {
        data.before_step();
        return checkpoints.vote();
      },
      [&](std::int64_t step) { return evaluates_after(step) || (flows && checkpoints.is_due(step)); });
  while (done < c.run.steps && !stopped) {
    DoneStep step;
    try {
      step = steps.next();
    } catch (base::Error const& e) {
      // Where every rank gets the error, the checkpoint of an earlier step that is being written can be completed.
      if (e.code() == base::ExitCode::not_finite || world.size() == 1) checkpoints.finish();
      throw;
    }
    auto const& r = step.result;
    double const seconds = step.seconds;
    in_steps += seconds;
    step_seconds.push_back(seconds);
    done = file.reached(r.step);
    if (r.skipped()) {
      base::log_root(
          fmt::format("Step {} skipped: the gradients overflowed with a loss scale of {}; {}. Next scale: {}", r.step,
                      r.loss_scale, r.overflow, trainer.loss_scale().scale));
    }
    if (done == first_step + 1) first_loss = r.loss;
    last_loss = r.loss;
    stopped = (r.stop || checkpoints.time_is_up(r)) && done < c.run.steps;
    bool const last = done == c.run.steps;
    eval_loss.reset();
    if (!stopped && evaluates_after(done)) evaluate();
    if (files) {
      base::MetricsRow const row{done,
                                 step.tokens,
                                 r.loss,
                                 r.grad_norm,
                                 r.lr,
                                 seconds * 1e3,
                                 static_cast<double>(r.tokens) / seconds,
                                 eval_loss,
                                 c.model.mtp.on() ? std::optional(r.mtp_loss) : std::nullopt};
      io::apart([&] { files->write(row); });
    }
    if (c.model.moe.on() && (done % c.run.log_every == 0 || last || stopped)) {
      auto const load = trainer.expert_load();
      if (expert_file) io::apart([&] { expert_file->write(done, load); });
    }
    base::Stopwatch saving;
    checkpoints.after_step(r);  // after the row: no checkpoint is valid whose row is not there
    on_disk += saving.seconds();
    if (timers) timers->add("checkpoint", saving.seconds());
    progress.step({done, r.loss, r.grad_norm, r.lr, static_cast<double>(r.tokens), seconds, eval_loss,
                   c.model.mtp.on() ? std::optional(r.mtp_loss) : std::nullopt});
    if (timers && (done % c.run.log_every == 0 || last || stopped)) {
      auto const lines = timers->write(done, step.timers, world);
      base::log_root(fmt::format("  {:<22}{:>7} {:>11} {:>11} {:>11}\n{}", "timers, ms a step", "calls", "least",
                                 "mean", "most", lines));
    }
    if (checkpoints.failed()) return failed(base::ExitCode::checkpoint_failed, checkpoints.failure());
  }
  if (!c.checkpoint.on() && done > first_step) trainer.require_finite_weights();
  if (!checkpoints.save_and_wait()) return failed(base::ExitCode::checkpoint_failed, checkpoints.failure());
  bool const saved = checkpoints.up_to_date();
  double const memory_now = memory_of_all(world);
  auto const traced = tracing.finish();
  auto const phases = spread(trainer.times(), trainer.mesh().world());
  summary.median_step_s = base::median(step_seconds);
  if (c.batch.variable && done > first_step)
    summary.tokens_per_step = (trainer.tokens_done() - tokens_before) / (done - first_step);
  summary.skipped_steps = trainer.loss_scale().skipped;
  report::add_measured(summary, phases, memory_before, memory_now);
  if (done > first_step) summary.bottleneck = report::bottleneck(trainer, trainer.times(), phases, on_disk);
  base::log_root(fmt::format(
      "\n{} {} in {}{}{}; {} tokens/s", stopped ? "Stopped after" : "Finished",
      base::counted(done - first_step, "step"), base::human_seconds(whole.seconds()),
      done > first_step ? fmt::format(": loss {:.4f} -> {:.4f}", first_loss, last_loss) : "",
      eval_loss ? fmt::format(", validation loss {:.4f} (perplexity {:.2f}; {})", *eval_loss, std::exp(*eval_loss),
                              validation_windows(c, trainer.sampler()))
                : "",
      base::human_count(in_steps > 0 ? static_cast<double>(trainer.tokens_done() - tokens_before) / in_steps : 0.0)));
  if (auto const load = trainer.expert_load(); done > first_step && !load.empty()) base::log_root(describe(load));
  if (auto const& scale = trainer.loss_scale(); scale.skipped > 0)
    base::log_root(fmt::format("Skipped since step 0: {}, whose gradients overflowed{}",
                               base::counted(scale.skipped, "step"),
                               c.precision.loss_scaling == config::LossScaling::dynamic
                                   ? fmt::format("; the loss scale is now {}", scale.scale)
                                   : ""));
  if (auto const n = trainer.post_validation(); c.optimizer.post_validation && done > first_step)
    base::log_root(
        fmt::format("Post-validation: {} of {} updated before the global norm was known, {} of these taken "
                    "back; it waits after a step that was clipped",
                    n.tried_out, base::counted(done - first_step, "step"), n.taken_back));
  if (ceiling > 0.0 && !step_seconds.empty())
    base::log_root(
        report::describe_mfu(c, world.size(), summary.median_step_s, ceiling, summary.recomputed_flops_per_step));
  if (world.rank() == 0) {
    std::string graded;
    io::apart([&] { graded = plan::grade_step(c, summary.median_step_s); });  // reads the cluster file
    if (!graded.empty()) base::log_root(graded);
  }
  if (memory_before > 0.0 && memory_now > 0.0)
    base::log_root(report::grade_memory(summary.memory_predicted, memory_before, memory_now, world.size()));
  base::log_root(to_table(phases));
  if (!summary.bottleneck.empty()) base::log_root(fmt::format("Bottleneck: {}", summary.bottleneck));
  if (!traced.empty()) base::log_root(traced + "\n");
  if (!stopped && c.sample.tokens > 0) {
    between_steps = true;
    auto const text = sample_text(trainer, *tokenizer.tokenizer);
    stopped = trainer.stopped_early();
    base::log_root(fmt::format("A sample of the model (temperature {}):\n----\n{}{}\n----", c.sample.temperature,
                               c.sample.prompt, text));
  }
  base::log_root(fmt::format("Written: {0}/metrics.csv, {1}{0}/resolved.toml", c.run.output_dir,
                             c.model.moe.on() ? c.run.output_dir + "/experts.csv, " : ""));
  bool const complete = history_is_complete(files, summary.reason, world);
  auto const code = exit_code_of(c, stopped, saved, complete);
  if (stopped && collectives::all_reduce(world, data.found_bad() ? 1.0 : 0.0) > 0.0) {
    base::log_root(fmt::format(
        "Stopped after step {} of {}, as the data behind it cannot be read{}", done, c.run.steps,
        saved ? ". When they are mended, the same command goes on from here, if need be with checkpoint.load=weights"
              : ""));
    data.require_good();
  }
  if (stopped) {
    base::log_root(fmt::format("Stopped by a signal or run.time_limit after step {} of {} (exit code {}){}", done,
                               c.run.steps, static_cast<int>(code), how_to_go_on(c, saved)));
  }
  if (code == base::ExitCode::checkpoint_failed) {
    base::error_once(checkpoints.not_saved());
    return failed(code, checkpoints.not_saved());
  }
  if (code == base::ExitCode::ok && eval_loss && !std::isfinite(*eval_loss)) {
    auto const text = "the last validation loss is not finite, though all weights are: activations overflow\n" +
                      base::format({.expected = "a finite validation loss",
                                    .found = fmt::format("{} after step {}", *eval_loss, done),
                                    .where = c.run.output_dir + "/metrics.csv",
                                    .fix = "go on from an older checkpoint with a lower optimizer.lr, or evaluate with "
                                           "another run.precision"});
    base::error_once(text);
    return failed(base::ExitCode::not_finite, text);
  }
  return code;
}

}  // namespace

base::ExitCode run(config::Config const& c, comm::Communicator& world, bool verbose,
                   schedule::DrawTimelines const& draw) {
  base::Stopwatch start;
  SignalGuard signals(world.rank() == 0);
  auto policy = comm::wait_policy();
  policy.timeout_s = c.comm.timeout_s;
  comm::set_wait_policy(policy);
  io::set_file_timeout(c.run.file_timeout_s);
  make_output_folder(c.run.output_dir, world);
  RunLocks locks;
  locks.take(c, world);
  if (c.checkpoint.on()) require_shared_folder(c.checkpoint.dir, c.run.name, world);
  report::report_placement(linalg::set_blas_threads(device::host_threads()), world);
  if (auto const line = choose_message_path(c, world); !line.empty()) base::log_root(line);
  SummaryFile summary(c, world, start);
  return summary.keep([&] {
    return engine::with_policy(
        c, [&](auto policy) { return train<decltype(policy)>(c, world, start, summary, signals, verbose, draw); });
  });
}

}  // namespace p3d::run
