// SPDX-License-Identifier: Apache-2.0
// Finds the start of a run: step 0 with weights of the seed or of model.load, or a checkpoint.
// A run proves that a checkpoint is its own by the origin that the file carries: "weights <hash> of <file> (step n)".
// So the same command, started again after a stop, finds the newest of its own checkpoints, and a run of the same name
// that began with another file is refused instead of being continued by mistake.

#include <p3d/run/checkpoint.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/io/checkpoint_folder.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/model_weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

namespace p3d::run {

namespace {

using config::Load;

constexpr char const* indent = "\n            ";

/// All valid checkpoints of the run, newest first, and warnings about those that are not valid. Rank 0 looks into the
/// folder, the others take its word. Collective.
std::vector<io::CheckpointFile> find_together(comm::Communicator& world, config::Config const& c) {
  std::vector<io::CheckpointFile> files;
  comm::agree_on_root(world, [&] {
    io::apart([&] { files = io::find_checkpoints(c.checkpoint.dir, c.run.name); });
    std::reverse(files.begin(), files.end());
  });
  auto count = static_cast<std::int64_t>(files.size());
  world.broadcast(&count, 1, comm::Type::int64, 0).wait();
  files.resize(static_cast<std::size_t>(count));
  for (auto& f : files) {
    std::int64_t numbers[2] = {f.step, f.valid ? 1 : 0};
    world.broadcast(numbers, 2, comm::Type::int64, 0).wait();
    f.step = numbers[0];
    f.valid = numbers[1] == 1;
    f.path = io::checkpoint_path(c.checkpoint.dir, c.run.name, f.step);
  }
  return files;
}

/// The files beside the model that the run of a checkpoint began with, as that checkpoint carries them. On rank 0.
/// Collective.
io::ModelFiles carried_files(comm::Communicator& world, std::string const& checkpoint) {
  io::ModelFiles out;
  comm::agree_on_root(world, [&] { io::apart([&] { out = io::stored_model_files(checkpoint); }); });
  return out;
}

/// Throws when a valid checkpoint of a later step than `start` is there: a run must not write behind a checkpoint that
/// it does not come from, which would be taken for its newest.
void require_newest(std::vector<io::CheckpointFile> const& files, config::Config const& c, std::int64_t start) {
  for (auto const& f : files) {
    if (!f.valid || f.step <= start) continue;
    base::refuse(
        {.expected = fmt::format("no checkpoint of \"{}\" after step {}, where this run starts", c.run.name, start),
         .found = f.path,
         .where = fmt::format("checkpoint.resume = \"{}\"", c.checkpoint.resume),
         .fix = "go on from it with checkpoint.resume = \"auto\", or choose another run.name or checkpoint.dir, or "
                "move the file away"});
  }
}

/// The lines of a list in a message, each below the other.
std::string list(std::vector<std::string> const& lines) {
  std::string out;
  for (auto const& line : lines) out += indent + line;
  return out;
}

}  // namespace

io::ModelFiles files_of_model(std::string const& folder) {
  std::vector<std::string> left_out;
  auto out = io::read_model_files(folder, left_out);
  if (!left_out.empty())
    base::warn_root(fmt::format("checkpoints do not carry files of more than {}: {}. Copy them beside an export",
                                base::human_bytes(static_cast<double>(io::ModelFile::largest)), base::join(left_out)));
  return out;
}

io::CheckpointHeader restore(engine::AnyTrainer& trainer, std::string const& path, Load load,
                             io::StoredTokenizer const& tokenizer) {
  auto const& c = trainer.config();
  auto& world = trainer.mesh().world();
  bool const all = load == Load::all;
  auto const file = io::read_checkpoint(world, path);
  auto const differences = compare(file.header, c, load, trainer.source().hash(), tokenizer);
  if (!differences.forbidden.empty()) {
    bool const other_model =
        std::ranges::any_of(differences.forbidden, [](auto const& line) { return line.starts_with("model."); });
    base::refuse(
        {.expected = all ? "a checkpoint of this model, data and precision" : "a checkpoint of this model",
         .found = fmt::format("{} difference(s):{}", differences.forbidden.size(), list(differences.forbidden)),
         .where = path,
         .fix = !all ? "give [model] the values of the checkpoint (p3d checkpoint show FILE)"
                : other_model
                    ? "undo the changes in the input, or name another file (checkpoint.resume)"
                    : "undo the changes in the input, name another file (checkpoint.resume), or take only its "
                      "weights (checkpoint.load = \"weights\")"});
  }
  auto optimizer = c.optimizer_with_versions();
  // A file of a run whose gradients were late by other updates has other versions: the newest is a start for all.
  auto oldest = config::previous_weights;
  oldest.age = static_cast<int>(optimizer.delay);
  bool const all_versions = std::ranges::any_of(file.arrays, [&](auto const& a) { return a.is_of(oldest.group()); });
  if (!all_versions || !has_same_delays(file.header, c)) optimizer.delay = 0;
  auto const own = all ? config::state_of(optimizer).arrays : config::StateArrays{};
  std::vector<config::StateArray> arrays(own.begin(), own.end());
  if (all && c.compresses()) {
    // The file may have other workers: what they remember has the same sum (engine/checkpoint_parts.cpp).
    auto const in_file = [&](config::StateArray const& kind) {
      return std::ranges::any_of(
          file.arrays, [&](auto const& a) { return a.is_of(kind.group()) && (kind.rows == 0 || a.rows == kind.rows); });
    };
    auto const arrays_of = [&](int workers) {
      return config::compression_arrays(c.comm.compress, workers, c.comm.powersgd_rank);
    };
    if (!arrays_of(0).empty()) {
      int workers = 0;
      while (in_file(arrays_of(workers + 1).back())) ++workers;
      for (auto const& kind : arrays_of(workers))
        if (in_file(kind)) arrays.push_back(kind);
    }
  }
  trainer.forget_compression();  // of a file that was read before, and was damaged
  base::Stopwatch watch;
  io::load_parts(world, file, io::element_of(c.run.precision), trainer.checkpoint_parts(arrays),
                 c.checkpoint.buffer_mb << 20);
  if (all) {
    trainer.set_versions_made(file.header.versions_made);
    bool const counted = !c.batch.variable || file.header.data_order > 1;
    trainer.set_steps_done(file.header.step, counted ? std::optional(file.header.tokens) : std::nullopt);
    trainer.set_loss_scale(
        optim::resumed_loss_scale(trainer.loss_scale(), c.precision.loss_scaling, file.header.loss_scale));
  }
  std::int64_t elements = 0;
  for (auto const& a : file.arrays)
    if (a.is_of("parameters") || std::ranges::any_of(arrays, [&](auto const& kind) { return a.is_of(kind.group()); }))
      elements += a.size();
  auto const read = fmt::format(
      "{} in {}", base::human_bytes(static_cast<double>(elements) * static_cast<double>(size_of(file.header.element))),
      base::human_seconds(watch.seconds()));
  base::log_root(
      all ? fmt::format("Resumed from {}: step {}, {} tokens ({})", path, file.header.step, trainer.tokens_done(), read)
          : fmt::format("Weights loaded from {} (its step {}; {}); this run starts at step 0", path, file.header.step,
                        read));
  if (!differences.noted.empty()) base::log_root("  changed since that checkpoint:" + list(differences.noted));
  return file.header;
}

namespace {

/// Restores the newest file of the run that is whole; the damaged ones are named in warnings. `accept` throws at a file
/// that is another run's. Returns nothing when there are no files. Collective.
template <class Accept>
std::optional<Start> newest(engine::AnyTrainer& trainer, std::vector<io::CheckpointFile> const& files,
                            io::StoredTokenizer const& tokenizer, Accept&& accept) {
  for (auto const& f : files) {
    if (!f.valid) {
      base::warn_root(fmt::format("skipping {}: {}", f.path, f.error));
      continue;
    }
    try {
      accept(f);
      auto const header = restore(trainer, f.path, Load::all, tokenizer);
      return Start{trainer.steps_done(), header.origin, true, carried_files(trainer.mesh().world(), f.path)};
    } catch (base::ReportedError const&) {
      throw;
    } catch (base::Error const& e) {
      if (e.code() == base::ExitCode::bad_input) throw;
      base::warn_root(fmt::format("skipping a damaged checkpoint\n{}", e.what()));
    }
  }
  if (files.empty()) return {};
  base::refuse({.expected = "a valid checkpoint to go on from",
                .found = fmt::format("{} file(s) of this run, none of them valid", files.size()),
                .where = trainer.config().checkpoint.dir,
                .fix = "copy a good one back, or move them away to start again"});
}

/// Starts a run that begins with a file, or with its weights: from its own newest checkpoint if it has written one,
/// which says by its origin that it comes from the file. Collective.
Start begin_with_file(engine::AnyTrainer& trainer, io::StoredTokenizer const& tokenizer,
                      std::vector<io::CheckpointFile> files) {
  auto const& options = trainer.config().checkpoint;
  auto& world = trainer.mesh().world();
  bool const all = options.load == Load::all;
  auto const source = io::read_checkpoint(world, options.resume);
  auto const mark = fmt::format("{} {:016x} of ", all ? "state" : "weights", io::content_hash(source, all));
  // A run may go on from a file among those of its own name: checkpoints older than that file do not matter. Those of
  // another history do: they would be deleted as old ones of this run (checkpoint.keep).
  bool const goes_back = std::ranges::any_of(files, [&](auto const& f) {
    std::error_code missing;
    return std::filesystem::equivalent(f.path, options.resume, missing);
  });
  if (all && goes_back) std::erase_if(files, [&](auto const& f) { return f.step <= source.header.step; });
  auto const own = newest(trainer, files, tokenizer, [&](io::CheckpointFile const& f) {
    auto const origin = io::read_checkpoint(world, f.path).header.origin;
    if (origin.starts_with(mark)) return;
    base::refuse({.expected = fmt::format("no {}checkpoint of \"{}\" but those of a run that began with the {} of {}",
                                          goes_back ? "later " : "", trainer.config().run.name,
                                          all ? "state" : "weights", options.resume),
                  .found = fmt::format("{} of a run that began with {}", f.path,
                                       origin.empty() ? "weights of its own" : "the " + origin),
                  .where = fmt::format("checkpoint.resume = \"{}\"", options.resume),
                  .fix = "go on from it with checkpoint.resume = \"auto\", or choose another run.name or "
                         "checkpoint.dir, or move the file away"});
  });
  if (own) return *own;
  restore(trainer, options.resume, options.load, tokenizer);
  return {trainer.steps_done(), fmt::format("{}{} (step {})", mark, options.resume, source.header.step), false,
          carried_files(world, options.resume)};
}

}  // namespace

namespace {

/// Reads the weights of model.load, which is logged with the purpose. The origin of the start has their hash.
/// Collective.
Start load_model(engine::AnyTrainer& trainer, char const* purpose) {
  auto const& c = trainer.config();
  auto& world = trainer.mesh().world();
  base::Stopwatch watch;
  std::optional<io::ModelWeights> weights;
  comm::agree(world, "open the model of model.load", [&] { weights.emplace(c.model.load); });
  auto const hash = io::load_weights(world, *weights, io::element_of(c.run.precision), trainer.checkpoint_parts({}),
                                     c.checkpoint.buffer_mb << 20);
  for (auto const& note : weights->config().notes) base::warn_root(note);
  if (auto const length = weights->config().model.seq_len; c.model.seq_len > length)
    base::warn_root(
        fmt::format("model.seq_len = {}, and the model in {} was made for {} tokens: rotary positions "
                    "beyond these may need model.rope_scaling, or training",
                    c.model.seq_len, c.model.load, length));
  base::log_root(fmt::format("Weights loaded from {} (hash {:016x}, {}); {}", c.model.load, hash,
                             base::human_seconds(watch.seconds()), purpose));
  io::ModelFiles files;
  comm::agree_on_root(world, [&] { files = files_of_model(c.model.load); });
  return {0, fmt::format("weights {:016x} of {}", hash, c.model.load), false, std::move(files)};
}

/// Starts at step 0, with the weights of model.load or those of the seed. Collective.
Start begin_anew(engine::AnyTrainer& trainer) {
  if (trainer.config().model.load.empty()) return {};
  return load_model(trainer, "this run starts at step 0");
}

/// Throws when a run of model.load finds a checkpoint whose run did not begin with the weights of that model. A folder
/// of another name is read to compare them. Collective.
void require_loaded(engine::AnyTrainer& trainer, std::string const& origin, std::string const& path) {
  auto const& c = trainer.config();
  if (origin.starts_with("weights ") && origin.ends_with(" of " + c.model.load)) return;
  auto const mark = origin.starts_with("weights ")
                        ? load_model(trainer, "a checkpoint's run may have begun with them").origin
                        : std::string();
  if (!mark.empty() && origin.starts_with(mark.substr(0, mark.find(" of ")))) return;
  base::refuse({.expected = "no checkpoints but those of a run that began with the weights of model.load",
                .found = fmt::format("{} of a run that began with {}", path,
                                     origin.empty() ? "weights of its own" : "the " + origin),
                .where = fmt::format("model.load = \"{}\"", c.model.load),
                .fix = "choose another run.name or checkpoint.dir, or remove model.load to go on from that file"});
}

}  // namespace

Start resume(engine::AnyTrainer& trainer, io::StoredTokenizer const& tokenizer) {
  auto const& c = trainer.config();
  auto const& options = c.checkpoint;
  bool const automatic = options.resume == "auto";
  std::vector<io::CheckpointFile> files;
  if (automatic || options.on()) files = find_together(trainer.mesh().world(), c);
  if (automatic && !options.on()) {
    if (!files.empty())
      base::warn_root(
          fmt::format("checkpoint.every = 0: {} of this run in {} {} not read; the run starts at step 0. "
                      "checkpoint.resume = \"{}\" goes on from the newest",
                      base::counted(std::ssize(files), "checkpoint"), options.dir, files.size() == 1 ? "is" : "are",
                      files.front().path));
    return begin_anew(trainer);
  }
  if (automatic) {
    auto& world = trainer.mesh().world();
    auto const own = newest(trainer, files, tokenizer, [&](io::CheckpointFile const& f) {
      if (!c.model.load.empty()) require_loaded(trainer, io::read_checkpoint(world, f.path).header.origin, f.path);
    });
    return own ? *own : begin_anew(trainer);
  }
  if (options.resume == "none") {
    require_newest(files, c, 0);
    return begin_anew(trainer);
  }
  return base::as_bad_input([&] { return begin_with_file(trainer, tokenizer, std::move(files)); });
}

}  // namespace p3d::run
