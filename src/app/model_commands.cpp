// SPDX-License-Identifier: Apache-2.0
#include "model_commands.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/data/tokenizer.hpp>
#include <p3d/io/checkpoint_writer.hpp>
#include <p3d/io/model_export.hpp>
#include <p3d/io/model_weights.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/run/checkpoint.hpp>
#include <p3d/run/text.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

/// The tokenizer beside the model, for the checkpoint to carry; none where p3d cannot read it.
io::StoredTokenizer find_tokenizer(std::string const& folder, std::int64_t vocab_size) {
  for (char const* name : {"tokenizer.json", "tokenizer.model"}) {
    auto const path = (fs::path(folder) / name).string();
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) continue;
    try {
      return run::open_tokenizer(path, "", vocab_size, true).stored;
    } catch (base::Error const& e) {
      base::warn_root(fmt::format("the checkpoint is without the tokenizer of the model\n{}", e.what()));
    }
  }
  return {};
}

int import_model(Words const& words, std::string precision, comm::Communicator& world) {
  std::optional<io::ModelWeights> weights;
  io::StoredTokenizer tokenizer;
  auto const c = comm::agree(world, "read the model", [&] {
    weights.emplace(words.from);
    if (precision.empty()) precision = weights->element() == io::Element::float64 ? "fp64" : "fp32";
    auto input = make_input(words, precision);
    tokenizer = run::open_tokenizer(input, true).stored;
    return input;
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
  if (tokenizer.name.empty())
    comm::agree_on_root(world, [&] { tokenizer = find_tokenizer(words.from, c.model.vocab_size); });
  io::CheckpointWriter writer(world, {.buffer_bytes = buffer_bytes, .async = false});
  writer.start(words.to, run::checkpoint_header(c, 0, 0, origin, {}, tokenizer),
               run::checkpoint_table(weights->table()), false, parts);
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

/// Writes the run's tokenizer under the names that transformers looks for; the files that were written.
std::vector<std::string> write_tokenizer(io::StoredTokenizer const& tokenizer, std::string const& folder) {
  if (tokenizer.name.empty()) return {};
  if (tokenizer.file.empty()) {
    base::warn_root(fmt::format("the tokenizer {} is not in the checkpoint, its file is large: copy it into {}",
                                tokenizer.name, folder));
    return {};
  }
  auto const ending = fs::path(tokenizer.name).extension();
  auto const name = ending == ".json" || ending == ".model" ? "tokenizer" + ending.string() : tokenizer.name;
  std::vector<std::string> files{(fs::path(folder) / name).string()};
  io::write_text_atomically(files.front(), tokenizer.file);
  if (ending != ".json") return files;
  nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"clean_up_tokenization_spaces", false}};
  if (tokenizer.end >= 0) {
    auto const read = data::parse_tokenizer(tokenizer.name, tokenizer.file, tokenizer.pattern);
    config["eos_token"] = read->decode(std::vector{static_cast<std::int32_t>(tokenizer.end)});
  }
  files.push_back((fs::path(folder) / "tokenizer_config.json").string());
  io::write_text_atomically(files.back(), config.dump(2) + "\n");
  return files;
}

}  // namespace

int import_command(int argc, char** argv) {
  Overrides words;
  std::string precision;
  CLI::App app{
      "Makes a checkpoint of a model in Hugging Face form (GPT-2, Llama or Mistral: config.json and safetensors). It "
      "has the "
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
      auto files =
          io::export_model(world, file, c.model, sorted.to,
                           {.type = type_of(dtype, file.header.element),
                            .shard_bytes = shard_bytes,
                            .buffer_bytes = buffer_bytes,
                            .eos_token = c.data.eod_token >= 0 ? c.data.eod_token : file.header.tokenizer.end});
      comm::agree_on_root(world, [&] {
        for (auto const& name : write_tokenizer(file.header.tokenizer, sorted.to)) files.push_back(name);
      });
      base::log_root("Written: " + base::join(files));
      return 0;
    });
  });
}

}  // namespace p3d::app
