// SPDX-License-Identifier: Apache-2.0
#include <p3d/config/reading.hpp>

#include "config/keys.hpp"
#include "config/rope_scaling.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace p3d::config {

namespace {

constexpr auto source_of_input = "the input in the checkpoint";

/// The largest number of tokens in a microbatch: a larger one is no faster, and takes memory.
constexpr std::int64_t most_tokens = 16384;

/// True when a key of the run's input is taken over when its model is read. All others have their defaults.
bool is_taken_over(Key const& key, bool layout) {
  auto const name = key.full();
  if (key.section == "model") return name != "model.preset" && name != "model.load";
  if (key.section == "model.mla" || key.section == "model.mtp") return true;
  if (key.section == "model.moe") return name != "model.moe.dispatch" && name != "model.moe.buffer_factor";
  if (key.section == "parallel") return layout || name == "parallel.sequence";
  if (key.section == "data") return true;
  constexpr std::string_view others[] = {"run.precision",
                                         "precision.autocast",
                                         "run.output_dir",
                                         "checkpoint.dir",
                                         "run.seed",
                                         "run.eval_batches",
                                         "context.order",
                                         "batch.micro",
                                         "batch.variable",
                                         "optimizer.type",
                                         "linalg.host",
                                         "pipeline.vocab_parallel",
                                         "pipeline.layers_per_stage"};
  return std::find(std::begin(others), std::end(others), name) != std::end(others);
}

/// The keys that are taken over, as TOML.
std::string taken_over(Config const& config, bool layout) {
  std::string out, section;
  for (auto const& key : keys()) {
    if (!is_taken_over(key, layout)) continue;
    if (key.section != section) out += fmt::format("\n[{}]\n", section = key.section);
    out += fmt::format("{} = {}\n", key.name, key.write(config));
  }
  return out;
}

}  // namespace

Data Reading::no_data() {
  Data out;
  out.format = DataFormat::synthetic;
  out.split = 0.0;
  return out;
}

Data own_data(Config const& stored) {
  auto out = stored.data;
  out.tokenizer = Data{}.tokenizer;
  out.tokenizer_pattern = Data{}.tokenizer_pattern;
  return out;
}

ParseResult parse_stored(std::string_view canonical) {
  return parse_text(canonical, source_of_input, "/", {}, 0, Purpose::layout);
}

ParseResult reading_input(Config const& stored, Reading const& wanted) {
  bool const as_the_run = wanted.layout.empty() && stored.num_ranks() == wanted.ranks;
  Config c = stored;
  if (!as_the_run) {
    auto layout = parse_text("", "", "/", wanted.layout, wanted.ranks, Purpose::layout);
    if (!layout.config) return layout;
    c.parallel = layout.config->parallel;
  }
  c.run.precision = wanted.precision.value_or(stored.run.precision);
  if (c.run.precision != Precision::fp32) c.precision.autocast = Autocast::none;
  if (wanted.seq_len > 0) c.model.seq_len = wanted.seq_len;
  if (c.model.rope_scaling == RopeScaling::none)  // older runs may have numbers of a scaling that they do not use
    visit_scaling_keys(c.model, [&](char const*, auto member) { c.model.*member = Model{}.*member; });
  c.data = wanted.data;
  c.batch.variable = wanted.variable;
  c.batch.micro = std::clamp<std::int64_t>(most_tokens / c.model.seq_len, 1, stored.batch.micro);
  c.run.eval_batches = 0;
  std::string const nowhere("/");  // nothing is written; the defaults have each rank's current directory in them
  c.run.output_dir = nowhere;
  c.checkpoint.dir = nowhere;
  c.optimizer.type = OptimizerType::sgd;  // sgd has no moments
  if (!has_onednn()) c.linalg.host = HostGemm::blas;
  c.parallel.sequence = c.model.moe.on() && c.parallel.tp > 1;
  c.parallel.layout = LayoutChoice::given;
  c.plan = {};
  // With capacity_factor experts take the first tokens of a sequence: the ranks of cp must have them in their order.
  if (c.model.moe.capacity_factor > 0) c.context.order = ContextOrder::contiguous;
  c.pipeline.vocab_parallel = stored.divides_vocabulary();
  c.pipeline.layer_split = c.model.layers < c.parallel.pp ? LayerSplit::cost : LayerSplit::even;
  return parse_text(taken_over(c, as_the_run), source_of_input, "/", wanted.layout, wanted.ranks);
}

}  // namespace p3d::config
