// SPDX-License-Identifier: Apache-2.0
// The keys of [pipeline]: the schedule, and how layers are dealt to stages.

#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/section.hpp"

#include <p3d/base/schedule_names.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace p3d::config {

namespace {

/// Reads the whole numbers of a list.
MaybeMismatch read_integers(toml::array const& list, IntegerRange range, std::vector<int>& out) {
  std::vector<int> numbers;
  auto const read_one = [&](toml::node const& element) {
    std::int64_t value = 0;
    auto mismatch = read_integer(element, range, value);
    numbers.push_back(static_cast<int>(value));
    return mismatch;
  };
  if (auto mismatch = read_list(list, read_one)) return mismatch;
  out = std::move(numbers);
  return {};
}

/// Reads pipeline.layers_per_stage.
MaybeMismatch read_layers_per_stage(toml::node const& node, std::string const&, Config& config) {
  auto& pipeline = config.pipeline;
  if (auto const* list = node.as_array()) {
    std::vector<int> layers;
    if (auto mismatch = read_integers(*list, {0, limits::layers}, layers)) return mismatch;
    if (layers.empty())
      return Mismatch{&node, "an empty list", "give one number of layers for each of the parallel.pp stages"};
    pipeline.layer_split = LayerSplit::list;
    pipeline.layers_per_stage = layers;
    return {};
  }
  if (auto mismatch = read_enum(node, pipeline.layer_split)) {
    if (!node.is_string())
      mismatch->fix = "use \"even\", \"cost\" or a list with one number per stage, such as [3, 3, 2]";
    return mismatch;
  }
  pipeline.layers_per_stage.clear();
  return {};
}

/// Reads pipeline.delays.
MaybeMismatch read_delays(toml::node const& node, std::string const&, Config& config) {
  auto const* list = node.as_array();
  if (list == nullptr)
    return Mismatch{&node, "no list", "use a list of updates by which layers are late, such as [3, 2, 1, 0]"};
  return read_integers(*list, {0, Optimizer::most_delay}, config.pipeline.delays);
}

/// The names of schedules: the generators of room schedule, as the build found them (P3D_GENERATORS is P3D_GENERATOR(x)
/// for each), and the words that name no generator.
std::vector<std::string> schedule_names() {
#define P3D_GENERATOR(x) #x,
  return {P3D_GENERATORS "pipedream", "round_robin", "file", "auto"};
#undef P3D_GENERATOR
}

}  // namespace

void add_pipeline(std::vector<Key>& table) {
  Section<Pipeline> s(table, "pipeline", &Config::pipeline);
  s.name(
      "schedule", &Pipeline::schedule, schedule_names(),
      "order of forward and backward passes; file: read it; auto: the quickest that fits max_memory; pipedream: 1f1b "
      "with gradients that are late by stage (pipeline.delays)");
  s.integer("virtual_stages", &Pipeline::virtual_stages, {0, limits::layers},
            "stages (chunks) per pipeline rank, for interleaved_1f1b and looped_bfs; 0: the schedule's own number");
  s.integer("microbatch_group_size", &Pipeline::microbatch_group_size, {0, limits::axis},
            "of interleaved_1f1b: microbatches that go through a chunk before the next chunk's turn; 0: parallel.pp");
  s.integer("lookahead", &Pipeline::lookahead, {0, limits::axis},
            "compute actions that a microbatch's memory is taken early, so that its message travels during them; 0: "
            "least memory");
  s.add(
      "file", "string", "with schedule = \"file\": text or CSV of the schedule, relative to the input file", nullptr,
      [](toml::node const& node, std::string const& folder, Config& config) {
        std::string path;
        auto mismatch = read_string(node, true, path);
        if (!mismatch) config.pipeline.file = path.empty() ? "" : absolute_path(path, folder);
        return mismatch;
      },
      [](Config const& config) {
        auto const& path = config.pipeline.file;
        return toml_string(path.empty() ? "" : absolute_path(path, ""));
      });
  s.flag("vocab_parallel", &Pipeline::vocab_parallel,
         "divide the embedding and the output layer over all pipeline ranks, so that stages are even");
  s.integer("weight_deferral_limit", &Pipeline::weight_deferral_limit, {0, limits::axis},
            "microbatches whose weight gradients the last stage may put off until the pipeline empties; 0: none");
  s.choice("flush", &Pipeline::flush,
           "with optimizer.delay = 1 or schedule = \"pipedream\": whether the pipeline empties between steps; auto: "
           "where it has to; never: refuse what makes it");
  s.add(
      "delays", fmt::format("list of integers from 0 to {}", Optimizer::most_delay),
      "updates by which the gradients of layers are late (PipeDream), each number for an equal part of the layers; []: "
      "those of the stages with schedule = \"pipedream\", else optimizer.delay for all",
      nullptr, read_delays,
      [](Config const& config) { return fmt::format("[{}]", fmt::join(config.pipeline.delays, ", ")); });
  s.choice("p2p", &Pipeline::p2p,
           "how messages between stages start: each by itself; batched: a send with the receive beside it; ring: those "
           "of a step in one neighbourhood exchange");
  s.number("max_memory", &Pipeline::max_memory, {.max = 1e9},
           "of schedule = \"auto\": GiB that a rank may use for weights, gradients, moments and activations; 0: any");
  s.add("layers_per_stage", "\"even\" | \"cost\" | list of integers >= 0",
        "how layers are dealt to stages: cost counts the head and may leave the ends without layers; a list has one "
        "entry per stage",
        nullptr, read_layers_per_stage, [](Config const& config) {
          auto const& p = config.pipeline;
          if (p.layer_split != LayerSplit::list) return toml_string(to_string(p.layer_split));
          return fmt::format("[{}]", fmt::join(p.layers_per_stage, ", "));
        });
}

}  // namespace p3d::config
