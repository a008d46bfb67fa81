// SPDX-License-Identifier: Apache-2.0
// From text to Config in six steps: the preset, the folder of model.load, the entries of the file and of the command
// line in their order, the values that follow from others, the rules between keys, and the errors in reading order. An
// error does not end the work: a key whose value is lost is marked so, rules that need it keep quiet, and all other
// errors are still found. Example: model.heads = "x" is an error at its place, and the rule that model.heads divides
// model.hidden keeps quiet.
#include <p3d/config/parse.hpp>

#include "config/files.hpp"
#include "config/limits.hpp"
#include "config/load_model.hpp"
#include "config/presets.hpp"
#include "config/rules.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text_file.hpp>

#include <fmt/format.h>

#include <filesystem>

namespace p3d::config {

namespace {

namespace fs = std::filesystem;

/// Applies the preset before the entries, as it is the one value that other keys override.
void apply_preset(Input const& input, Config& config, Sources& sources) {
  constexpr auto preset_key = "model.preset";
  Entry const* last = nullptr;
  for (auto const& entry : input.entries) {
    if (entry.key->full() == preset_key) last = &entry;
  }
  if (!last) return;
  if (last->node) sources.set_given(preset_key, *last);
  Config scratch;
  bool const readable = last->node && !last->key->read(*last->node, input.folder, scratch);
  if (!readable) {  // then nothing is known about any size of the model
    for (auto const& name : model_keys()) sources.set_lost(name);
    return;
  }
  auto const* preset = find_preset(scratch.model.preset);
  if (!preset) return;  // ""
  apply(*preset, config.model);
  for (auto const& name : model_keys()) {
    bool const follows = (name == "model.kv_heads" && preset->kv_heads == 0) ||
                         (name == "model.head_dim" && preset->head_dim == 0) ||
                         (name == "model.qkv_bias" && !preset->qkv_bias) || (name == "model.ffn" && preset->ffn == 0) ||
                         (name == "model.moe.ffn" && !preset->moe.on()) || name == "model.moe.choice_bias" ||
                         (name == "model.mla.v_head_dim" && !config.model.mla.on());
    if (!follows && name != preset_key) sources.set_preset(name, preset_key);
  }
}

/// Reads the value of each entry into the Config, in order: a later one for the same key counts.
void apply_entries(Input const& input, Config& config, Sources& sources, KeyErrors& errors) {
  for (auto const& entry : input.entries) {
    auto const name = entry.key->full();
    if (!entry.node) {
      sources.set_lost(name);
      continue;
    }
    auto const mismatch = entry.key->read(*entry.node, entry.from_file() ? input.folder : "", config);
    if (!mismatch) {
      sources.set_given(name, entry);
      continue;
    }
    sources.set_lost(name);
    errors.add(input.order(entry, *mismatch->node), {.key = name,
                                                     .where = input.place(entry, *mismatch->node),
                                                     .expected = entry.key->expected(),
                                                     .found = mismatch->found,
                                                     .fix = mismatch->fix});
  }
}

/// Checks the rules between keys that need no file.
void check_rules(Check const& check) {
  check_model(check);
  check_size(check);
  check_mesh(check, Purpose::training);
  check_moe(check);
  check_context(check);
  check_parallel(check);
  check_compression(check);
  check_pipeline(check);
  check_precision(check);
  check_memory(check);
}

/// Makes the Config of an input, or all errors.
ParseResult resolve(Input const& input, int num_ranks, Purpose purpose, KeyErrors& errors) {
  P3D_REQUIRE(num_ranks >= 0, "a number of ranks, or 0 for unknown");
  Config config;
  Sources sources(input);
  bool const training = purpose == Purpose::training;
  apply_preset(input, config, sources);
  auto const loaded = training ? apply_load(input, config, sources, errors) : std::nullopt;
  apply_entries(input, config, sources, errors);
  for (auto const& key : input.meant) {
    if (!sources.given(key)) sources.set_lost(key);
  }
  if (input.readable) {
    derive(config, sources, num_ranks);
    Check const check{config, sources, num_ranks, errors};
    if (training) {
      if (loaded) check_load(check, *loaded);
      check_rules(check);
      check_data(check);
      check_checkpoint(check);
    } else {
      check_mesh(check, purpose);
    }
  }
  ParseResult result;
  result.errors = errors.sorted();
  if (result.errors.empty()) result.config = std::move(config);
  return result;
}

/// Reads the text of the file; adds an error and returns "" when it cannot.
std::string read_file(std::string const& path, Input& input, KeyErrors& errors) {
  auto const full = absolute_path(path, "");
  std::error_code ignored;
  KeyError error{.key = "", .where = path, .expected = "an input file", .found = "", .fix = ""};
  if (fs::is_directory(full, ignored)) {
    error.found = full + " is a folder";
    error.fix = "name the .toml file in it";
  } else {
    try {
      return base::read_text_file(full, error.expected, path, limits::input_bytes);
    } catch (base::Error const& e) {
      error.found = e.text().found;
      error.fix = e.text().fix;
      if (!fs::exists(full, ignored))
        error.fix += fmt::format("{}; the current directory is {}", similar_file(full), absolute_path("", ""));
    }
  }
  input.readable = false;
  errors.add(0, std::move(error));
  return "";
}

}  // namespace

ParseResult parse_file(std::string const& path, std::vector<std::string> const& overrides, int num_ranks,
                       Purpose purpose) {
  if (path.empty()) return parse_text("", "", "", overrides, num_ranks, purpose);
  Input input;
  input.name = path;
  input.folder = fs::path(path).parent_path().string();
  KeyErrors errors;
  auto const text = read_file(path, input, errors);
  if (input.readable) read_document(text, input, errors);
  read_overrides(overrides, input, errors);
  return resolve(input, num_ranks, purpose, errors);
}

ParseResult parse_text(std::string_view text, std::string const& name, std::string const& folder,
                       std::vector<std::string> const& overrides, int num_ranks, Purpose purpose) {
  Input input;
  input.name = name;
  input.folder = folder;
  KeyErrors errors;
  read_document(text, input, errors);
  read_overrides(overrides, input, errors);
  return resolve(input, num_ranks, purpose, errors);
}

bool allowed(Config const& config) {
  // An input without entries: errors name no places, and nobody reads them.
  Input const nothing_written;
  auto const sources = Sources::of_whole(nothing_written);
  KeyErrors errors;
  check_rules({config, sources, config.num_ranks(), errors});
  return errors.size() == 0;
}

}  // namespace p3d::config
