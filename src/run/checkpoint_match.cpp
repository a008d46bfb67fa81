// SPDX-License-Identifier: Apache-2.0
// How a checkpoint is compared with the run that would go on from it, and what the run's state is called in the file.
// A file holds the complete input of its run. Both inputs are split into "section.key" -> value, and each key that
// differs weighs: it is ignored (run.log_every), noted in the log (optimizer.lr) or forbids to go on (model.hidden).
// What it weighs depends on how much is taken: all of the file, or its weights alone.

#include <p3d/run/checkpoint.hpp>

#include <p3d/base/version.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/config/reading.hpp>

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

namespace p3d::run {

namespace {

/// The values of a canonical input (one key on each line), as they are written there, by "section.key".
std::map<std::string, std::string> values(std::string const& toml) {
  std::map<std::string, std::string> out;
  std::istringstream in(toml);
  std::string line, section;
  while (std::getline(in, line)) {
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1) + ".";
    auto const equals = line.find(" = ");
    if (line.starts_with('#') || line.starts_with('[') || equals == std::string::npos) continue;
    out[section + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return out;
}

/// How much a difference in one key counts.
enum class Weight { ignored, noted, forbidden };

/// True when a key of [model] describes a part that this model does not have. (The keys that say which parts it has are
/// compared themselves.)
bool is_unused(std::string const& key, config::Model const& m) {
  bool const rope = m.position == config::Position::rope;
  if (!rope && key.starts_with("model.rope_")) return true;
  if (key.starts_with("model.swiglu_")) return m.activation != config::Activation::swiglu_clamped;
  if (key == "model.rope_scaling_factor") return m.rope_scaling == config::RopeScaling::none;
  if (key == "model.rope_low_freq_factor" || key == "model.rope_high_freq_factor")
    return m.rope_scaling != config::RopeScaling::llama3;
  if (key == "model.rope_original_seq_len")
    return m.rope_query_beta == 0.0 &&
           (m.rope_scaling == config::RopeScaling::none || m.rope_scaling == config::RopeScaling::linear);
  if (key == "model.rope_short_factors" || key == "model.rope_long_factors")
    return m.rope_scaling != config::RopeScaling::longrope;
  if (key == "model.ffn") return m.moe.on() && m.moe_layers() == m.layers;  // no layer is dense
  return false;
}

/// True when two values of a key give models with the same arrays that are only trained in other ways.
bool only_trains(std::string const& key, std::string const& one, std::string const& other) {
  auto const both = [&](auto const& fits) { return fits(one) && fits(other); };
  // A loss over the global batch has an array of its own, which one of the two models would lack.
  if (key == "model.moe.aux_loss") return both([](std::string const& v) { return v != "\"global\""; });
  return key == "model.moe.bias_update_rate";  // model.moe.choice_bias says whether there are biases
}

/// Says what a difference in a key means for a run that goes on from all of a checkpoint, or from its weights alone.
Weight weight_of(std::string const& key, std::string const& here, std::string const& there,
                 config::Config const& config, config::Load load) {
  static std::set<std::string> const same_data{
      "run.seed",           "batch.global",         "data.format", "data.split",     "data.shuffle",  "data.eod_token",
      "data.eod_mask_loss", "data.reset_positions", "data.pack",   "batch.variable", "optimizer.type"};
  // Keys that may change in any case. The paths and sources of the data are among them: the hash of the data, which
  // covers the weights of its sources, is compared instead.
  static std::set<std::string> const free{"run.name",
                                          "run.output_dir",
                                          "run.log_every",
                                          "run.trace",
                                          "run.ceiling",
                                          "run.time_limit",
                                          "run.file_timeout_s",
                                          "run.eval_every",
                                          "run.eval_batches",
                                          "model.preset",
                                          "model.load",
                                          "model.moe.dispatch",
                                          "batch.micro",
                                          "model.moe.buffer_factor",
                                          "batch.microbatches",
                                          "data.path",
                                          "data.tokenizer",
                                          "data.source",
                                          "optimizer.post_validation"};
  // Keys that change how a model is trained, and not its arrays.
  static std::set<std::string> const of_training{
      "model.dropout",           "model.moe.jitter",      "model.moe.aux_coefficient",
      "model.moe.z_coefficient", "model.mtp.loss_weight", "run.precision"};
  bool const all = load == config::Load::all;
  if (free.contains(key) || is_unused(key, config.model)) return Weight::ignored;
  if (of_training.contains(key) || key.starts_with("precision.") || only_trains(key, here, there))
    return all ? Weight::noted : Weight::ignored;
  // The weights of a model with rotary positions fit every length of text.
  if (key == "model.seq_len" && !all && config.model.position == config::Position::rope) return Weight::noted;
  if (key.starts_with("model.")) return Weight::forbidden;
  if (same_data.contains(key)) return all ? Weight::forbidden : Weight::ignored;
  // Megatron-LM's order is made for a number of samples, and so of steps.
  if (key == "run.steps" && all && config.data.shuffle == config::Shuffle::megatron) return Weight::forbidden;
  bool const compression =
      key == "comm.compress" || key == "comm.workers" || key == "comm.topk" || key == "comm.powersgd_rank";
  bool const training = key.starts_with("optimizer.") || compression || key == "run.steps";
  return training && all ? Weight::noted : Weight::ignored;
}

}  // namespace

io::CheckpointHeader checkpoint_header(config::Config const& c, std::int64_t step, std::uint64_t data_hash,
                                       std::string const& origin, optim::LossScaleState const& loss_scale,
                                       io::StoredTokenizer const& tokenizer) {
  io::CheckpointHeader h;
  h.step = step;
  h.samples = step * c.batch.global;
  h.tokens = h.samples * c.model.seq_len;
  h.seed = c.run.seed;
  h.data_hash = data_hash;
  h.element = io::element_of(c.run.precision);
  h.p3d_version = base::version_with_hash();
  h.input = config::canonical_toml(c);
  h.loss_scale = optim::stored_loss_scale(loss_scale, c.precision.loss_scaling);
  h.origin = origin;
  h.tokenizer = tokenizer;
  return h;
}

std::vector<io::TableRow> checkpoint_table(layout::ParamTable const& table) {
  std::vector<io::TableRow> out;
  for (auto const& spec : table.specs()) {
    io::TableRow row;
    row.name = spec.name;
    row.rows = spec.rows;
    row.cols = spec.cols;
    row.layer = spec.layer;
    row.decay = spec.decay;
    row.vector = spec.rows == 1;
    out.push_back(std::move(row));
  }
  return out;
}

namespace {

/// The value of a key that is younger than the file: the file's run did what the default does, and a default may follow
/// from other keys of the file.
std::string value_of_younger_key(std::string const& key, std::map<std::string, std::string> const& there,
                                 std::map<std::string, std::string> const& defaults) {
  auto const of_file = [&](char const* name) {
    auto const found = there.find(name);
    return found != there.end() ? found->second : defaults.at(name);
  };
  if (key == "model.qkv_bias") return of_file("model.bias");
  if (key == "model.moe.choice_bias") return of_file("model.moe.bias_update_rate") == "0.0" ? "false" : "true";
  if (key != "model.head_dim") return defaults.at(key);
  auto const hidden = std::atoll(of_file("model.hidden").c_str()), heads = std::atoll(of_file("model.heads").c_str());
  return fmt::format("{}", heads > 0 ? hidden / heads : 0);
}

}  // namespace

std::string data_difference(io::CheckpointHeader const& file, std::uint64_t data_hash) {
  return fmt::format("training data: hash {:016x} in the checkpoint, {:016x} here", file.data_hash, data_hash);
}

bool has_same_delays(io::CheckpointHeader const& file, config::Config const& config) {
  auto const stored = config::parse_stored(file.input);
  if (!stored.config) return config.latest_delay() == 0;
  for (std::int64_t l = -1; l <= config.model.layers; ++l)
    if (stored.config->delay_of(l) != config.delay_of(l)) return false;
  return true;
}

Differences compare(io::CheckpointHeader const& file, config::Config const& config, config::Load load,
                    std::uint64_t data_hash, io::StoredTokenizer const& tokenizer) {
  Differences out;
  auto const here = values(config::canonical_toml(config));
  auto const there = values(file.input);
  auto const defaults = values(config::canonical_toml(config::Config{}));
  for (auto const& [key, value] : here) {
    auto const found = there.find(key);
    auto other = found != there.end() ? found->second : value_of_younger_key(key, there, defaults);
    // Files of data_order 1 say "documents" for what is "whole_documents" now: their p3d had no other order of that
    // name.
    bool const renamed = key == "data.shuffle" && file.data_order == 1 && other == "\"documents\"";
    if (renamed) other = "\"whole_documents\"";
    auto const weight = weight_of(key, value, other, config, load);
    if (weight == Weight::ignored || other == value) continue;
    if (key == "optimizer.delay" && load != config::Load::weights) continue;  // a line below tells of all delays
    auto line = fmt::format("{}: {} in the checkpoint{}, {} in the input", key, other,
                            renamed ? " (there named \"documents\", as its p3d had no other)" : "", value);
    (weight == Weight::forbidden ? out.forbidden : out.noted).push_back(std::move(line));
  }
  if (auto const& t = file.tokenizer; t.hash != tokenizer.hash) {
    auto const words = [](io::StoredTokenizer const& x) {
      return x.name.empty() ? std::string("bytes") : fmt::format("{} (hash {:016x})", x.name, x.hash);
    };
    (load == config::Load::all ? out.forbidden : out.noted)
        .push_back(fmt::format("data.tokenizer: {} in the checkpoint, {} here", words(t), words(tokenizer)));
  }
  if (load == config::Load::weights) return out;
  if (!has_same_delays(file, config))
    out.noted.push_back(
        fmt::format("updates by which gradients are late ({}): {} in the input, others in "
                    "the checkpoint, of which the newest weights alone are taken",
                    config.optimizer.delay > 0 ? "optimizer.delay" : "pipeline.delays",
                    config.latest_delay() > 0 ? config::delays_text(config) : "none"));
  // The counts are divided, not multiplied: the file may hold any numbers, and a product might overflow.
  auto const batch = config.batch.global, length = config.model.seq_len;
  // Samples may be shorter than model.seq_len, but are never empty.
  bool const shorter = config.batch.variable && file.data_order > 1;
  bool const tokens =
      shorter ? file.tokens >= file.samples && (file.tokens == 0 || (file.tokens - 1) / length < file.samples)
              : file.tokens % length == 0 && file.tokens / length == file.samples;
  if (file.samples % batch != 0 || file.samples / batch != file.step || !tokens) {
    out.forbidden.push_back(
        fmt::format("position in the data: step {}, {} samples and {} tokens in the checkpoint; each step has {} "
                    "samples of {}{} tokens here",
                    file.step, file.samples, file.tokens, batch, shorter ? "up to " : "", length));
  }
  if (file.data_hash != data_hash) {
    out.forbidden.push_back(data_difference(file, data_hash));
  }
  return out;
}

}  // namespace p3d::run
