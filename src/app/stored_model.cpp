// SPDX-License-Identifier: Apache-2.0
// Finds, opens and loads the model of a command that does not train. The command line may name a checkpoint, the folder
// of a run (its newest valid checkpoint is taken) or a folder in Hugging Face form. The file may come from anywhere:
// its input says how large the model is, so it is compared with the stored arrays before memory is taken for it.
// Example: for runs/mine it takes runs/mine/checkpoints/mine-00000060.h5 when that is the newest valid file.
#include "stored_model.hpp"

#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/io/checkpoint_folder.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/run/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

namespace p3d::app {

namespace {

namespace fs = std::filesystem;

// The precisions in which a model may be read; --precision names one.
constexpr std::array precisions{config::Precision::fp64, config::Precision::fp32, config::Precision::bf16,
                                config::Precision::fp16};

/// The configuration of a result, or all of its errors as an exception.
config::Config required(config::ParseResult result) {
  if (!result.config) throw config::InputError(result.errors);
  return *std::move(result.config);
}

/// True when the path is a folder.
bool is_folder(fs::path const& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

/// True when the folder has a regular file of this name.
bool has_file(std::string const& folder, char const* name) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(folder) / name, ignored);
}

/// The places where a run whose results are in `folder` may have its checkpoints, and the run's name, "" where the
/// folder does not say. A folder that was moved or copied has checkpoints of its own: they come before those at the
/// place where the run wrote them.
struct RunFolder {
  std::vector<std::string> folders;
  std::string name;

  void add(fs::path const& place) {
    std::error_code none;
    auto const real = fs::weakly_canonical(place, none);
    auto text = (none ? place : real).string();
    if (std::find(folders.begin(), folders.end(), text) == folders.end()) folders.push_back(std::move(text));
  }
};
/// Finds the places where the checkpoints of a run may be. The run's own input, resolved.toml, says where its
/// checkpoints are relative to its results.
RunFolder read_run_folder(std::string const& folder) {
  RunFolder out;
  if (has_file(folder, "resolved.toml")) {
    auto const path = (fs::path(folder) / "resolved.toml").string();
    auto const text = base::read_text_file(path, "the input of a run", path, std::int64_t{1} << 20);
    if (auto const input = config::parse_stored(text).config) {
      out.name = input->run.name;
      auto const below = fs::path(input->checkpoint.dir).lexically_relative(input->run.output_dir);
      if (!below.empty() && *below.begin() != "..") out.add(fs::path(folder) / below);
      out.add(input->checkpoint.dir);
    }
  }
  out.add(fs::path(folder) / "checkpoints");
  out.add(folder);
  return out;
}

/// The path of the newest valid checkpoint of a run's folder.
std::string newest_checkpoint(std::string const& folder) {
  auto const run = read_run_folder(folder);
  for (auto const& place : run.folders) {
    auto const files = io::find_checkpoints(place, run.name);
    io::CheckpointFile const* newest = nullptr;
    std::set<std::string> names;
    for (auto const& file : files) {
      if (!file.valid) {
        base::warn_root(fmt::format("{} is skipped: {}", file.path, file.error));
        continue;
      }
      names.insert(file.run_name);
      if (newest == nullptr || file.step > newest->step) newest = &file;
    }
    if (names.size() > 1) {
      base::refuse({.expected = "a folder with checkpoints of one run",
                    .found = "checkpoints of " + base::join({names.begin(), names.end()}, " and "),
                    .where = place,
                    .fix = "name the file"});
    }
    if (newest != nullptr) return newest->path;
  }
  base::refuse({.expected = "a checkpoint, the folder of a run that has some, or that of a model (config.json)",
                .found = "a folder without valid checkpoints and without config.json",
                .where = folder,
                .fix = "name a checkpoint: p3d checkpoint ls FOLDER lists them; a run writes them with "
                       "checkpoint.every"});
}

/// The path of the checkpoint, or of the folder of a model, that the command line means.
std::string find_model(std::string const& given) {
  return is_folder(given) && !has_file(given, "config.json") ? newest_checkpoint(given) : given;
}

/// The tokenizer beside a model in Hugging Face form, with its file; none when the folder has none. Throws base::Error
/// when p3d cannot read it.
io::StoredTokenizer folder_tokenizer(std::string const& folder, std::int64_t vocab_size) {
  std::optional<base::Error> unreadable;
  for (auto const& path : text::tokenizer_files(folder)) {
    try {
      auto out = run::open_tokenizer(path, "", vocab_size, false).stored;
      out.file = text::read_tokenizer_file(path);
      return out;
    } catch (base::Error const& e) {
      unreadable = e;
    }
  }
  if (unreadable) throw base::Error(*unreadable);
  return {};
}

/// Opens a folder in Hugging Face form.
StoredModel open_folder(std::string const& folder, ModelLine const& line) {
  StoredModel out;
  out.path = folder;
  out.weights = std::make_unique<io::ModelWeights>(folder);
  out.config.model = out.weights->config().model;
  out.config.run.precision =
      out.weights->element() == io::Element::float64 ? config::Precision::fp64 : config::Precision::fp32;
  out.config.data = config::Reading::no_data();
  if (line.tokenizer.empty()) out.tokenizer = folder_tokenizer(folder, out.config.model.vocab_size);
  return out;
}

/// Throws unless the file has the parameters of its input's model and no others. It takes no memory of the size that
/// the input says.
void require_same_arrays(io::Checkpoint const& file, config::Config const& c) {
  auto const refuse = [&](std::string const& expected, std::string const& found) {
    base::refuse({.expected = expected,
                  .found = found,
                  .where = file.path,
                  .fix = "the file was changed after p3d wrote it: take another copy"});
  };
  auto const stored = std::ssize(file.table);
  constexpr auto as_input = "the arrays of the model that the file's own input describes";
  if (c.model.layers > stored)  // a layer has several arrays
    refuse(as_input, fmt::format("{} for {}", base::counted(stored, "array"), base::counted(c.model.layers, "layer")));
  auto const table = layout::make_param_table(c);
  auto const& specs = table.specs();
  for (std::size_t i = 0; i < std::min(specs.size(), file.table.size()); ++i) {
    auto const& spec = specs[i];
    auto const& row = file.table[i];
    if (spec.name == row.name && spec.rows == row.rows && spec.cols == row.cols) continue;
    refuse(fmt::format("{} of [{}, {}], as the file's own input says", spec.name, spec.rows, spec.cols),
           fmt::format("{} of [{}, {}]", row.name, row.rows, row.cols));
  }
  if (specs.size() != file.table.size())
    refuse(as_input, fmt::format("{} where it has {}", base::counted(stored, "array"), specs.size()));
}

}  // namespace

std::optional<int> parse_model_line(CLI::App& app, ModelLine& line, int argc, char** argv) {
  Overrides words;
  app.add_option("words", words,
                 "a checkpoint, the folder of a run (its newest checkpoint) or a folder with a model in Hugging Face "
                 "form; then where it runs: the keys of [parallel], such as parallel.tp=2")
      ->type_name("CHECKPOINT|FOLDER [parallel.AXIS=N ...]");
  std::vector<std::string> names;
  for (auto const precision : precisions) names.emplace_back(to_string(precision));
  app.add_option("--precision", line.precision,
                 "types of weights and activations, as run.precision has them (those of the run; of a folder fp32)")
      ->check(CLI::IsMember(names));
  if (auto const code = parse_words(app, argc, argv)) return code;
  for (auto const& word : words) {
    if (word.starts_with("parallel."))
      line.layout.push_back(word);
    else if (line.model.empty())
      line.model = word;
    else
      throw wrong_words("one checkpoint, and keys of [parallel]", word, app.get_name() + " --help lists what it takes");
  }
  if (line.model.empty())
    throw wrong_words("a checkpoint, or the folder of a run or a model", "none",
                      app.get_name() + " runs/NAME, or a file below checkpoint.dir of a run");
  return {};
}

void add_tokenizer_option(CLI::App& app, ModelLine& line) {
  app.add_option("--tokenizer", line.tokenizer, "tokenizer instead of the model's own: a file, or \"bytes\"");
  app.add_option("--tokenizer-pattern", line.pattern, "of a *.tiktoken file: how text is split")->needs("--tokenizer");
}

StoredModel open_stored_model(comm::Communicator& world, ModelLine const& line) {
  std::string path;
  std::int32_t folder = 0;
  comm::agree_on_root(world, [&] {
    path = find_model(line.model);
    folder = is_folder(path) ? 1 : 0;
  });
  comm::broadcast_text(world, path, 0);
  world.broadcast(&folder, 1, comm::Type::int32, 0).wait();
  // The path goes to stderr, so that the text or numbers on stdout can be used by another program.
  if (path != line.model && base::log_rank() == 0) fmt::print(stderr, "Checkpoint: {}\n", base::printable_line(path));
  if (folder == 1) {
    return comm::agree(world, "read the model", [&] { return open_folder(path, line); });
  }
  StoredModel out;
  out.path = path;
  out.checkpoint = base::as_bad_input([&] { return io::read_checkpoint(world, path); });
  auto const& header = out.checkpoint->header;
  out.config = comm::agree(world, "use the input in the checkpoint",
                           [&] { return required(config::parse_stored(header.input)); });
  out.tokenizer = header.tokenizer;
  return out;
}

std::unique_ptr<text::Tokenizer> stored_tokenizer(StoredModel const& model, ModelLine const& line) {
  auto const& stored = model.tokenizer;
  if (line.tokenizer.empty() && !stored.name.empty() && stored.file.empty()) {
    base::refuse({.expected = "a tokenizer in the checkpoint, or one that is named",
                  .found = fmt::format("only the name and the hash of {}: its file is large", stored.name),
                  .where = "the checkpoint",
                  .fix = "name the file: --tokenizer"});
  }
  auto out =
      line.tokenizer.empty() && !stored.name.empty()
          ? text::parse_tokenizer(stored.name, stored.file, stored.pattern, static_cast<std::int32_t>(stored.end))
          : text::make_tokenizer(line.tokenizer.empty() ? "bytes" : line.tokenizer, line.pattern);
  text::require_vocabulary(*out, model.config.model.vocab_size);
  return out;
}

config::Config reading_config(StoredModel const& model, ModelLine const& line, config::Reading wanted) {
  wanted.layout = line.layout;
  for (auto const precision : precisions)
    if (line.precision == to_string(precision)) wanted.precision = precision;
  auto result = config::reading_input(model.config, wanted);
  if (!result.config && line.seq_len > 0 && line.seq_len == wanted.seq_len) {
    // An input that is good in the model's own length is refused because of the option, which no error of a key names.
    auto own = wanted;
    own.seq_len = 0;
    if (auto const& first = result.errors.front(); config::reading_input(model.config, own).config)
      throw wrong_words(fmt::format("windows that can be read; for this length {}: {}", first.key, first.expected),
                        fmt::format("--seq-len {} ({})", line.seq_len, first.found), "give shorter windows: --seq-len");
  }
  auto c = required(std::move(result));
  if (model.checkpoint) require_same_arrays(*model.checkpoint, c);
  return c;
}

}  // namespace p3d::app
