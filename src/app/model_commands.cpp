// SPDX-License-Identifier: Apache-2.0
#include "model_commands.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/io/checkpoint_writer.hpp>
#include <p3d/io/model_export.hpp>
#include <p3d/io/model_weights.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/run/checkpoint.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <optional>

namespace p3d::app {

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

constexpr std::int64_t buffer_bytes = 64 << 20;

/// The first two words are paths, the others keys.
struct Words {
  std::string from, to;
  Overrides keys;
};
Words sort_words(Overrides const& words, char const* expected, std::string const& name, bool keys) {
  Words out;
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

/// What a rank handles of every parameter, of a checkpoint that all ranks write together.
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

/// The input that the checkpoint carries: the folder's model, and what the command line says.
config::Config make_input(Words const& words, std::string const& precision) {
  Overrides all{fmt::format("model.load='''{}'''", fs::absolute(words.from).string()), "run.precision=" + precision,
                "data.format=synthetic"};
  all.insert(all.end(), words.keys.begin(), words.keys.end());
  auto result = config::parse_file("", all, 0);
  if (!result.config) throw config::InputError(result.faults);
  result.config->model.load.clear();  // from here on the weights are in the checkpoint
  return *std::move(result.config);
}

int import_model(Words const& words, std::string precision, comm::Communicator& world) {
  std::optional<io::ModelWeights> weights;
  auto const c = comm::agree(world, "read the model", [&] {
    weights.emplace(words.from);
    if (precision.empty()) precision = weights->element() == io::Element::float64 ? "fp64" : "fp32";
    return make_input(words, precision);
  });
  comm::agree_on_root(world, [&] {
    if (!fs::exists(words.to)) return;
    throw base::Error({.expected = "a new file",
                       .found = "one that is there already",
                       .where = words.to,
                       .fix = "name another file, or delete this one"},
                      base::ExitCode::bad_input);
  });
  if (c.model.seq_len != weights->config().model.seq_len) {
    throw base::Error({.expected = fmt::format("model.seq_len = {}, as in config.json: the checkpoint holds the whole "
                                               "model",
                                               weights->config().model.seq_len),
                       .found = fmt::format("{}", c.model.seq_len),
                       .where = "command line",
                       .fix = "set model.seq_len in the run that loads the checkpoint"},
                      base::ExitCode::bad_input);
  }
  auto const element = c.run.precision == config::Precision::fp64 ? io::Element::float64 : io::Element::float32;
  auto self = comm::Communicator::self();
  auto const parts = row_parts(*weights, element, world, self);
  auto const hash = io::load_weights(world, *weights, element, parts, buffer_bytes);
  auto const origin = fmt::format("weights {:016x} of {}", hash, fs::absolute(words.from).lexically_normal().string());
  io::CheckpointWriter writer(world, {.buffer_bytes = buffer_bytes, .async = false});
  writer.start(words.to, run::checkpoint_header(c, 0, 0, origin, {}), run::checkpoint_table(weights->table()), false,
               parts);
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

/// The model and the data of the input in a checkpoint, whatever files it names.
config::Config stored_input(io::CheckpointHeader const& header) {
  auto result = config::parse_text(header.input, "the input in the checkpoint", "/", {}, 0, config::Purpose::layout);
  if (!result.config) throw config::InputError(result.faults);
  return *std::move(result.config);
}

io::TensorType type_of(std::string const& dtype, io::Element element) {
  if (dtype == "fp64") return io::TensorType::f64;
  if (dtype == "fp32") return io::TensorType::f32;
  if (dtype == "fp16") return io::TensorType::f16;
  if (dtype == "bf16") return io::TensorType::bf16;
  return element == io::Element::float64 ? io::TensorType::f64 : io::TensorType::f32;
}

/// "5GB", "500MB", "100KB" or bytes; units of 1000, as transformers has them.
std::int64_t read_size(std::string const& word) {
  std::int64_t unit = 1;
  auto digits = word;
  for (auto const& [ending, factor] : {std::pair{"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}}) {
    if (!word.ends_with(ending)) continue;
    unit = factor;
    digits = word.substr(0, word.size() - 2);
  }
  auto const count = read_count(digits, 1, std::uint64_t{1} << 30);
  if (count) return static_cast<std::int64_t>(*count) * unit;
  throw wrong_words("--max-shard-size: a whole number with KB, MB or GB", word, "for example --max-shard-size 5GB");
}

/// The run's tokenizer, where it is a file that transformers reads.
std::string copy_tokenizer(std::string const& tokenizer, std::string const& folder) {
  if (fs::path(tokenizer).filename() != "tokenizer.json") return "";
  auto const to = fs::path(folder) / "tokenizer.json";
  std::error_code why;
  fs::copy_file(tokenizer, to, fs::copy_options::overwrite_existing, why);
  if (!why) return to.string();
  base::warn_root(fmt::format("{} was not copied: {}", tokenizer, why.message()));
  return "";
}

}  // namespace

int import_command(int argc, char** argv) {
  Overrides words;
  std::string precision;
  CLI::App app{
      "Makes a checkpoint of a model in Hugging Face form (GPT-2 or Llama: config.json and safetensors). It has the "
      "weights and no moments: a run takes them with checkpoint.load = \"weights\". One process is enough; several "
      "divide the work."};
  app.name("p3d import");
  app.add_option("words", words, "the model's folder, the checkpoint to make, then keys of the input it carries")
      ->type_name("FOLDER OUT.h5 [KEY=VALUE ...]");
  app.add_option("--precision", precision, "run.precision of that input (fp64 for weights of fp64, else fp32)")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  if (auto const code = parse_words(app, argc, argv)) return *code;
  auto const sorted = sort_words(words, "FOLDER OUT.h5 [KEY=VALUE ...]", "p3d import", true);
  return with_ranks(argc, argv, [&](auto& world) { return import_model(sorted, precision, world); });
}

int export_command(int argc, char** argv) {
  Overrides words;
  std::string dtype, shard = "5GB";
  CLI::App app{
      "Writes the model of a checkpoint in Hugging Face form: config.json and safetensors. One process is enough; "
      "several divide the work."};
  app.name("p3d export");
  app.add_option("words", words, "the checkpoint, and a folder to make")->type_name("CHECKPOINT FOLDER");
  app.add_option("--dtype", dtype, "type of the numbers (as in the checkpoint); bf16, fp16: rounded to nearest")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option("--max-shard-size", shard, "a new file begins where one would be larger (5GB)");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  auto const sorted = sort_words(words, "CHECKPOINT FOLDER", "p3d export", false);
  auto const shard_bytes = read_size(shard);
  return with_ranks(argc, argv, [&](comm::Communicator& world) {
    return base::as_bad_input([&] {
      auto const file = io::read_checkpoint(world, sorted.from);
      auto const c = comm::agree(world, "use the input in the checkpoint", [&] { return stored_input(file.header); });
      auto files = io::export_model(world, file, c.model, sorted.to,
                                    {.type = type_of(dtype, file.header.element),
                                     .shard_bytes = shard_bytes,
                                     .buffer_bytes = buffer_bytes,
                                     .eos_token = c.data.eod_token});
      if (world.rank() == 0) {
        if (auto const tokenizer = copy_tokenizer(c.data.tokenizer, sorted.to); !tokenizer.empty())
          files.push_back(tokenizer);
      }
      base::log_root("Written: " + base::join(files));
      return 0;
    });
  });
}

}  // namespace p3d::app
