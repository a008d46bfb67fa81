// SPDX-License-Identifier: Apache-2.0
// The command p3d export: a checkpoint's model in Hugging Face form.
//
// Weights and sizes are the checkpoint's. The files beside them are those of the model that the run began with, which
// its checkpoints carry: an export changes in them what training has changed, and says what. Only a model that began
// with random weights has a config.json that p3d makes. The tokenizer is the run's: where it is another one than the
// origin's, the origin's tokenizer files would mislead, and are left out.

#include "model_commands.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/hugging_face.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/text/tokenizer.hpp>
#include <p3d/io/model_export.hpp>
#include <p3d/run/checkpoint.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

namespace p3d::app {

namespace {

namespace fs = std::filesystem;

/// The model and the data of the input in a checkpoint; the files that it names need not exist.
config::Config stored_input(io::CheckpointHeader const& header) {
  auto result = config::parse_text(header.input, "the input in the checkpoint", "/", {"model.load=\"\""}, 0,
                                   config::Purpose::layout);
  if (!result.config) throw config::InputError(result.errors);
  return *std::move(result.config);
}

/// The type of the numbers in the files: --dtype, or as the checkpoint has them.
io::TensorType type_of(std::string const& dtype, io::Element element) {
  if (dtype == "fp64") return io::TensorType::f64;
  if (dtype == "fp32") return io::TensorType::f32;
  if (dtype == "fp16") return io::TensorType::f16;
  if (dtype == "bf16") return io::TensorType::bf16;
  return element == io::Element::float64 ? io::TensorType::f64 : io::TensorType::f32;
}

/// Reads a size: "5GB", "500MB", "100KB" or bytes; units are powers of 1000, as in transformers.
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

/// True when the run's tokenizer is that of the model that it began with. A run on token files may name none: then it
/// is taken for the same.
bool same_tokenizer(io::StoredTokenizer const& run, io::ModelFiles const& origin, config::Config const& c) {
  if (run.name.empty()) return c.data.format != config::DataFormat::text;
  return std::any_of(origin.begin(), origin.end(), [&](io::ModelFile const& f) {
    return io::is_tokenizer_file(f.name) && !run.file.empty() && f.bytes == run.file;
  });
}

/// The files of the run's tokenizer, under the names that transformers looks for.
io::ModelFiles tokenizer_files(io::StoredTokenizer const& tokenizer) {
  auto const ending = fs::path(tokenizer.name).extension();
  if (ending == ".tiktoken") return {{tokenizer.name, tokenizer.file}};
  if (ending != ".json" && ending != ".model") {
    base::refuse({.expected = "a tokenizer of the name *.json, *.model or *.tiktoken",
                  .found = tokenizer.name,
                  .where = "the checkpoint",
                  .fix = "export a checkpoint that p3d wrote"});
  }
  io::ModelFiles out{{"tokenizer" + ending.string(), tokenizer.file}};
  if (ending == ".model") return out;
  nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"clean_up_tokenization_spaces", false}};
  if (tokenizer.end >= 0) {
    auto const end = static_cast<std::int32_t>(tokenizer.end);
    auto const read = text::parse_tokenizer(tokenizer.name, tokenizer.file, tokenizer.pattern, end);
    config["eos_token"] = read->decode(std::vector{end});
  }
  out.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
  return out;
}

/// The options of an export.
struct Export {
  ModelWords words;
  std::string origin;  ///< folder of --origin; "": the checkpoint's files
  std::string dtype;
  std::int64_t shard_bytes = 0;
};

/// The origin's config.json with the values that have changed; one that p3d writes where there is none, or where it
/// describes another model.
config::UpdatedConfig config_file(io::ModelFiles const& origin, config::Config const& c, char const* dtype,
                                  io::CheckpointHeader const& header, bool asked) {
  auto const end = c.data.eod_token >= 0 ? c.data.eod_token : header.tokenizer.end;
  auto const* const there = find(origin, "config.json");
  try {
    if (there) {
      auto updated = config::update_hugging_face(there->bytes, "config.json of the origin", c.model, dtype, end);
      for (auto const& line : updated.changes) base::log_root("config.json: " + line);
      return updated;
    }
  } catch (base::Error const& e) {
    if (asked) throw;
    base::warn_root(
        fmt::format("the config.json that the checkpoint carries is not used: p3d writes one\n{}", e.what()));
  }
  return {config::family_of(c.model), config::write_hugging_face(c.model, dtype, end), {}};
}

/// The files beside the weights, and the family that config.json names. Called on rank 0.
io::ModelFiles files_beside(Export const& options, io::Checkpoint const& file, config::Config const& c,
                            char const* dtype, config::ModelFamily& family) {
  auto const& header = file.header;
  auto origin = options.origin.empty() ? io::stored_model_files(file.path) : run::files_of_model(options.origin);
  // The origin "weights <hash> of <folder>" is that of model.load; with a checkpoint it ends with "(step n)".
  bool const began_with_folder = header.origin.starts_with("weights ") && !header.origin.ends_with(")");
  if (origin.empty() && began_with_folder) {
    base::log_root(
        fmt::format("The checkpoint does not carry the files beside the model that it began with ({}): "
                    "--origin FOLDER takes them from there",
                    header.origin));
  }
  auto config = config_file(origin, c, dtype, header, !options.origin.empty());
  family = config.family;
  io::ModelFiles out{{"config.json", std::move(config.text)}};
  bool const same = same_tokenizer(header.tokenizer, origin, c);
  std::vector<std::string> left_out;
  for (auto& f : origin) {
    if (f.name == "config.json") continue;
    bool const keep = same || !io::is_tokenizer_file(f.name);
    keep ? out.push_back(std::move(f)) : left_out.push_back(f.name);
  }
  if (!left_out.empty()) {
    base::log_root(fmt::format("Left out: {} of the origin, as the tokenizer of the run is {}", base::join(left_out),
                               header.tokenizer.name.empty() ? "bytes" : "another one, " + header.tokenizer.name));
  }
  if (same || header.tokenizer.name.empty()) return out;
  if (header.tokenizer.file.empty()) {
    base::warn_root(fmt::format("the tokenizer {} is not in the checkpoint, its file is large: copy it into {}",
                                header.tokenizer.name, options.words.to));
    return out;
  }
  for (auto& f : tokenizer_files(header.tokenizer)) out.push_back(std::move(f));
  return out;
}

/// Writes the model of a checkpoint. Collective.
int export_model(Export const& options, comm::Communicator& world) {
  auto const file = io::read_checkpoint(world, options.words.from);
  auto const c = comm::agree(world, "use the input in the checkpoint", [&] { return stored_input(file.header); });
  io::ExportOptions how{.type = type_of(options.dtype, file.header.element),
                        .shard_bytes = options.shard_bytes,
                        .buffer_bytes = model_buffer_bytes};
  auto family = config::ModelFamily::gpt2;
  comm::agree_on_root(world, [&] { how.files = files_beside(options, file, c, io::torch_name(how.type), family); });
  static_assert(sizeof family == sizeof(std::int32_t));
  world.broadcast(&family, 1, comm::Type::int32, 0).wait();
  how.family = family;
  auto const files = io::export_model(world, file, c.model, options.words.to, how);
  base::log_root("Written: " + base::join(files));
  return 0;
}

}  // namespace

int export_command(int argc, char** argv) {
  std::vector<std::string> words;
  Export options;
  std::string shard = "5GB";
  CLI::App app{
      "Writes the model of a checkpoint in Hugging Face form: config.json, safetensors and the tokenizer. Of a model "
      "that began as another one, the files beside the weights (generation_config.json, chat template, ...) are that "
      "one's; a line says what was changed in them. One process is enough; several divide the work."};
  app.name("p3d export");
  app.add_option("words", words, "the checkpoint, and a folder to make")->type_name("CHECKPOINT FOLDER");
  app.add_option("--dtype", options.dtype, "type of the numbers (as in the checkpoint); bf16, fp16: rounded to nearest")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option("--max-shard-size", shard, "a new file begins where one would be larger (5GB)");
  app.add_option("--origin", options.origin,
                 "folder of the model that the run began with, for a checkpoint that does not carry its files")
      ->type_name("FOLDER");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  options.words = sort_words(words, "CHECKPOINT FOLDER", "p3d export", false);
  options.shard_bytes = read_size(shard);
  return with_ranks(argc, argv, [&](comm::Communicator& world) {
    return base::as_bad_input([&] { return export_model(options, world); });
  });
}

}  // namespace p3d::app
