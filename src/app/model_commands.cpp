// SPDX-License-Identifier: Apache-2.0
// The command p3d import. Every rank reads its rows of each parameter from the model's files while the checkpoint is
// written through rank 0, so no rank ever holds the whole model. Before that the weights are read once for their hash,
// which becomes the checkpoint's origin.
#include "model_commands.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/hugging_face.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/io/checkpoint_writer.hpp>
#include <p3d/io/model_files.hpp>
#include <p3d/io/model_weights.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/run/checkpoint.hpp>
#include <p3d/run/text.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace p3d::app {

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

/// The parts of a checkpoint that all ranks write: each rank has some rows of every parameter.
std::vector<io::CheckpointPart> row_parts(io::ModelWeights& weights, io::Element element, comm::Communicator& world,
                                          comm::Communicator& self) {
  std::vector<io::CheckpointPart> out;
  auto const bytes = static_cast<std::int64_t>(size_of(element));
  for (auto const& spec : weights.table().specs()) {
    auto const rows = layout::replica_share(spec.rows, spec.cols, bytes, world.rank(), world.size());
    io::CheckpointPart part;
    part.array = "parameters/" + spec.name;
    part.global_rows = spec.rows;
    part.global_cols = part.cols = spec.cols;
    part.row_begin = rows.begin;
    part.rows = rows.size();
    part.replicas = &self;
    part.copy_in = [](auto...) {};
    part.copy_out = [&weights, &spec, rows, element](std::int64_t first, std::int64_t count, void* host) {
      auto const begin = rows.begin + first / spec.cols;
      weights.read(spec.name, {begin, begin + count / spec.cols}, {0, spec.cols}, element, host);
    };
    out.push_back(std::move(part));
  }
  return out;
}

/// The input that the checkpoint carries: the folder's model, and the keys of the command line.
config::Config make_input(ModelWords const& words, std::string const& precision) {
  Overrides all{fmt::format("model.load='''{}'''", fs::absolute(words.from).string()), "run.precision=" + precision,
                "data.format=synthetic"};
  all.insert(all.end(), words.keys.begin(), words.keys.end());
  auto result = config::parse_file("", all, 0);
  if (!result.config) throw config::InputError(result.errors);
  result.config->model.load.clear();  // the weights will be in the checkpoint
  return *std::move(result.config);
}

/// The tokenizer beside the model, for the checkpoint to carry; none when p3d cannot read it.
io::StoredTokenizer find_tokenizer(std::string const& folder, std::int64_t vocab_size) {
  for (auto const& path : text::tokenizer_files(folder)) {
    try {
      return run::open_tokenizer(path, "", vocab_size, true).stored;
    } catch (base::Error const& e) {
      base::warn_root(fmt::format("the checkpoint is without the tokenizer of the model\n{}", e.what()));
    }
  }
  return {};
}

/// Makes the checkpoint of a model. Collective.
int import_model(ModelWords const& words, std::string precision, comm::Communicator& world) {
  std::optional<io::ModelWeights> weights;
  io::StoredTokenizer tokenizer;
  io::ModelFiles files;
  auto const c = comm::agree(world, "read the model", [&] {
    weights.emplace(words.from);
    if (precision.empty()) precision = weights->element() == io::Element::float64 ? "fp64" : "fp32";
    auto input = make_input(words, precision);
    tokenizer = run::open_tokenizer(input, true).stored;
    return input;
  });
  comm::agree_on_root(world, [&] {
    if (!fs::exists(words.to)) return;
    base::refuse({.expected = "a new file",
                  .found = "one that is there already",
                  .where = words.to,
                  .fix = "name another file, or delete this one"});
  });
  // The checkpoint holds the whole model, with the length that it was made for; a run may choose another one.
  if (c.model.seq_len != weights->config().model.seq_len) {
    base::refuse({.expected = fmt::format("model.seq_len = {}, as in config.json: the checkpoint holds the whole "
                                          "model",
                                          weights->config().model.seq_len),
                  .found = fmt::format("{}", c.model.seq_len),
                  .where = "command line",
                  .fix = "set model.seq_len in the run that loads the checkpoint"});
  }
  auto const wanted = layout::make_param_table(c);
  auto const same = [](layout::ParamSpec const& a, layout::ParamSpec const& b) {
    return a.name == b.name && a.rows == b.rows && a.cols == b.cols;
  };
  if (auto const& there = weights->table().specs();
      !std::equal(there.begin(), there.end(), wanted.specs().begin(), wanted.specs().end(), same)) {
    base::refuse({.expected = "keys that leave the arrays of the model as they are",
                  .found = base::join(words.keys),
                  .where = "command line",
                  .fix = "set them in the run that loads the checkpoint, or train with model.load"});
  }
  auto const element = io::element_of(c.run.precision);
  auto self = comm::Communicator::self();
  auto const parts = row_parts(*weights, element, world, self);
  auto const hash = io::load_weights(world, *weights, element, parts, model_buffer_bytes);
  auto const origin = fmt::format("weights {:016x} of {}", hash, fs::absolute(words.from).lexically_normal().string());
  if (tokenizer.name.empty())
    comm::agree_on_root(world, [&] { tokenizer = find_tokenizer(words.from, c.model.vocab_size); });
  comm::agree_on_root(world, [&] { files = run::files_of_model(words.from); });
  io::CheckpointWriter writer(world, {.buffer_bytes = model_buffer_bytes, .way = io::WriteBy::by_root});
  writer.start(words.to, run::checkpoint_header(c, 0, 0, origin, {}, tokenizer),
               run::checkpoint_table(weights->table()), {}, parts, files);
  auto const result = writer.finish();
  if (result.error) throw base::Error(*result.error);
  for (auto const& note : weights->config().notes) base::warn_root(note);
  base::log_root(
      fmt::format("{}: {} of {} parameters ({}) as {}, {} ({:016x}). Train on from it with "
                  "checkpoint.resume = \"{}\" and checkpoint.load = \"weights\"",
                  words.to, to_string(weights->config().family), weights->table().num_parameters(),
                  base::human_count(static_cast<double>(weights->table().num_parameters())), io::name(element),
                  base::human_bytes(static_cast<double>(result.bytes)), hash, words.to));
  return 0;
}

/// Prints the families of models: model_type, name, and the keys of [model] that make one.
int list_families() {
  for (auto const& row : config::model_families())
    base::log_root(fmt::format("{:<11}  {:<11}  {}", to_string(row.family), row.name, row.form));
  return 0;
}

}  // namespace

ModelWords sort_words(std::vector<std::string> const& words, char const* expected, std::string const& name, bool keys) {
  ModelWords out;
  for (auto const& word : words) {
    if (keys && word.find('=') != std::string::npos)
      out.keys.push_back(word);
    else if (out.from.empty())
      out.from = word;
    else if (out.to.empty())
      out.to = word;
    else
      throw wrong_words(expected, word, name + " --help lists what it takes");
  }
  if (out.to.empty()) throw wrong_words(expected, out.from.empty() ? "none" : out.from, name + " --help says more");
  return out;
}

int import_command(int argc, char** argv) {
  Overrides words;
  std::string precision;
  CLI::App app{
      "Makes a checkpoint of a model in Hugging Face form (config.json and safetensors; --list names the model types). "
      "It has the weights and no moments: a run takes them with checkpoint.load = "
      "\"weights\". It carries the files beside the weights too (config.json, generation_config.json, the tokenizer "
      "and its chat template), for p3d export. One process is enough; several divide the work."};
  app.name("p3d import");
  app.add_option("words", words, "the model's folder, the checkpoint to make, then keys of the input it carries")
      ->type_name("FOLDER OUT.h5 [KEY=VALUE ...]");
  app.add_option("--precision", precision, "run.precision of that input (fp64 for weights of fp64, else fp32)")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  bool list = false;
  app.add_flag("--list", list, "print the model types that p3d reads and writes, and start nothing");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (list) return list_families();
  auto const sorted = sort_words(words, "FOLDER OUT.h5 [KEY=VALUE ...]", "p3d import", true);
  return with_ranks(argc, argv, [&](auto& world) { return import_model(sorted, precision, world); });
}

}  // namespace p3d::app
