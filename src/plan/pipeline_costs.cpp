// SPDX-License-Identifier: Apache-2.0
// Costs of the actions of each stage, from a formula of the model or from a table (CSV). The formula counts operations
// and divides them by the machine's rate; waits for other ranks are added, less what hides them. An example: a table
// "stage,forward,input,weight" with the line "0,1.5e-3,1.5e-3,1.4e-3" gives stage 0 a backward of 2.9 ms.

#include <p3d/plan/pipeline.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/traffic.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace p3d::plan {

static constexpr double most_seconds = 1e9, most_bytes = 1e24;  // in a table of costs: sums of them stay finite

/// Adds the time that the layers of a stage wait for other ranks of cp.
static void add_context_waits(config::Config const& config, layout::StageMap const& stages, int stage,
                              layout::StageRecompute const& recompute, MachineRates const& rates, StageCost& cost) {
  if (config.parallel.cp == 1) return;
  auto const division = layout::context_division(config);
  auto const range = layers_in_training(config, stages, stage);
  for (auto l = range.begin; l < range.end; ++l) {
    auto const wait = layout::context_wait(division, layout::context_work(config, l, rates), rates);
    cost.forward += wait.forward;
    cost.input += wait.backward;
    if (l - range.begin >= recompute.num_layers()) continue;  // of multi-token prediction
    auto const& remade = recompute.layer(static_cast<int>(l - range.begin));
    cost.recompute += remade.full ? wait.forward : remade.attention ? wait.again : 0.0;
    // Where latents travel, the weight gradient between them and keys comes with the input part.
    if (!division.latents) continue;
    auto const own = layout::context_work(config, l, rates).expansion;
    cost.input += own;
    cost.weight -= own;
  }
}

/// Adds the time that the layers of a stage wait for the ranks of their experts, less what their own work hides. Rows
/// go out while the shared experts compute; their gradients come back while the weight gradients of the experts' first
/// linears are computed.
/// `scale`: seconds of an operation for each token of a microbatch.
static void add_expert_waits(config::Config const& config, layout::StageMap const& stages, int stage,
                             layout::StageRecompute const& recompute, MachineRates const& rates, double scale,
                             StageCost& cost) {
  auto wait = expert_wait(config, rates);
  auto const& m = config.model;
  double const linear = 2.0 * scale * static_cast<double>(m.hidden);
  double const matrices = m.mlp_matrices();
  wait.forward -= std::min(wait.forward - wait.back, linear * matrices * static_cast<double>(m.moe.shared_ffn));
  wait.backward -= std::min(wait.back, linear * (matrices - 1) * static_cast<double>(m.moe.top_k * m.moe.ffn));
  auto const range = layers_in_training(config, stages, stage);
  for (auto l = range.begin; l < range.end; ++l) {
    if (!config.model.has_experts(l)) continue;
    cost.forward += wait.forward;
    cost.forward_wait += wait.forward;
    cost.input += wait.backward;
    cost.input_wait += wait.backward;
    if (l - range.begin >= recompute.num_layers()) continue;  // of multi-token prediction
    cost.recompute += remade_of_experts(recompute, static_cast<int>(l - range.begin), config.model.norms_after(), wait);
  }
}

/// Adds the time that the layers of a stage wait for the ranks of tp, where another microbatch computes meanwhile. Of a
/// layer two sums over tp are waited for in a forward, and two in a backward.
static void add_tensor_waits(config::Config const& config, layout::StageMap const& stages, int stage, double bytes,
                             MachineRates const& rates, StageCost& cost) {
  if (!config.interleaves_over_tp()) return;
  double const ranks = config.parallel.tp;
  double const sum = 2 * (ranks - 1) * (rates.latency + bytes / ranks / rates.bandwidth);
  auto const range = layers_in_training(config, stages, stage);
  double const wait = 2 * sum * static_cast<double>(range.end - range.begin);
  cost.forward += wait;
  cost.forward_wait += wait;
  cost.input += wait;
  cost.input_wait += wait;
}

/// Adds the costs of a vocabulary that the pipeline ranks divide. `head`: seconds of the whole output layer's forward
/// for a microbatch. Look-ups of embeddings count 0.
static void add_vocabulary(config::Config const& config, double head, PipelineCosts& costs) {
  double const ranks = config.parallel.pp, transfer = costs.message_bytes / costs.bandwidth;
  auto& v = costs.vocabulary;
  v.head_forward = head / ranks;
  v.head_backward = 2 * head / ranks;
  v.broadcast = costs.latency + transfer;
  v.sum = costs.latency + 2 * (ranks - 1) / ranks * transfer;
  v.gather = costs.latency;
}

/// Adds the blocks of multi-token prediction, all of whose gradients come with the input part.
static void add_prediction(config::Config const& config, double scale, StageCost& cost) {
  auto const& m = config.model;
  for (auto l = m.layers; l < m.all_layers(); ++l) {
    double const attention = m.operations_per_key() * keys_per_query(config, l, Keys::seen);
    double const linear = 2.0 * static_cast<double>(weights_of_layer(config, l) + weights_beside_layer(config));
    cost.forward += scale * (linear + attention);
    cost.input += scale * 2 * (linear + attention);
  }
}

PipelineCosts model_costs(config::Config const& config, layout::StageMap const& stages, MachineRates const& rates) {
  auto const& m = config.model;
  auto const tokens = static_cast<double>(config.batch.micro * m.seq_len) / config.parallel.cp;
  double const each_key = m.operations_per_key();
  double const head = 2.0 * static_cast<double>(m.vocab_size * m.hidden);
  double const scale = tokens / (rates.flops * config.parallel.tp);
  // A configuration by hand may have the keys of [precision] at their defaults for fp32.
  bool const narrow =
      config.run.precision == config::Precision::fp32 && config.precision.pipeline == config::Precision::bf16;
  auto const bytes = narrow ? config::bytes_of(config::Precision::bf16) : type_bytes(config).storage;
  PipelineCosts costs;
  double const activation = tokens * static_cast<double>(m.hidden * bytes);
  for (int s = 0; s < stages.num_stages(); ++s) {
    auto const range = stages.layers(s);
    double attention = 0.0, linear = stages.has_head(s) ? head : 0.0;
    for (auto l = range.begin; l < range.end; ++l) {
      attention += each_key * keys_per_query(config, l, Keys::seen);
      linear += 2.0 * static_cast<double>(weights_of_layer(config, l));
    }
    costs.stages.push_back(
        {.forward = scale * (linear + attention), .input = scale * (linear + 2 * attention), .weight = scale * linear});
    if (stages.is_last(s)) add_prediction(config, scale, costs.stages.back());
    bool const known = config.memory.recompute != config::Recompute::automatic;
    auto const recompute = known ? layout::stage_recompute(config.memory, stages, s) : layout::no_recompute(stages, s);
    costs.stages.back().recompute = scale * recompute_flops_per_token(config, recompute, range.begin, Keys::seen);
    costs.slots_kept = recompute.slots_kept;
    add_context_waits(config, stages, s, recompute, rates, costs.stages.back());
    add_expert_waits(config, stages, s, recompute, rates, scale, costs.stages.back());
    add_tensor_waits(config, stages, s, activation, rates, costs.stages.back());
  }
  auto const most = static_cast<double>(config.batch.micro * layout::context_division(config).most_tokens());
  double const rows = config.parallel.sequence ? std::ceil(most / config.parallel.tp) : most;
  costs.message_bytes = rows * static_cast<double>(m.hidden * bytes);
  costs.latency = rates.latency;
  costs.bandwidth = rates.bandwidth;
  if (!stages.stages_own_vocabulary()) add_vocabulary(config, scale * head, costs);
  return costs;
}

std::string to_csv(PipelineCosts const& costs) {
  std::string text = "stage,forward,input,weight";
  bool const whole =
      std::any_of(costs.stages.begin(), costs.stages.end(), [](StageCost const& c) { return c.backward >= 0; });
  text += whole ? ",backward\n" : "\n";
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    StageCost const& c = costs.stages[s];
    text += fmt::format("{},{},{},{}", s, c.forward, c.input + c.recompute, c.weight);
    text += whole ? fmt::format(",{}\n", c.whole() + c.recompute) : "\n";
  }
  if (auto const& v = costs.vocabulary; v.head_forward > 0)
    text += fmt::format("vocabulary,{},{},{},{},{},{},{}\n", v.embed_forward, v.head_forward, v.head_backward,
                        v.embed_backward, v.sum, v.broadcast, v.gather);
  if (costs.send > 0) text += fmt::format("send,{}\n", costs.send);
  if (costs.receive > 0) text += fmt::format("receive,{}\n", costs.receive);
  if (costs.latency > 0) text += fmt::format("latency,{}\n", costs.latency);
  if (std::isfinite(costs.bandwidth)) text += fmt::format("bandwidth,{}\n", costs.bandwidth);
  if (costs.message_bytes > 0) text += fmt::format("message_bytes,{}\n", costs.message_bytes);
  return text;
}

PipelineCosts parse_costs(std::string_view text, int num_stages) {
  PipelineCosts costs;
  costs.stages.assign(static_cast<std::size_t>(num_stages), {-1, -1, -1});
  int line = 0;
  auto const refuse = [&](std::string expected, std::string_view found) {
    base::refuse({.expected = std::move(expected),
                  .found = fmt::format("\"{}\"", found.substr(0, 60)),
                  .where = fmt::format("table of costs, line {}", line),
                  .fix = "for example: stage,forward,input,weight and then 0,1.5e-3,1.5e-3,1.4e-3"});
  };
  while (!text.empty()) {
    auto const end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    row = row.substr(0, row.find('#'));
    while (!row.empty() && (row.back() == '\r' || row.back() == ' ')) row.remove_suffix(1);
    if (row.empty() || row.starts_with("stage")) continue;
    std::vector<std::string> words;
    for (std::string_view rest = row;;) {
      auto const comma = std::min(rest.find(','), rest.size());
      words.emplace_back(rest.substr(0, comma));
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
    auto const number = [&](std::size_t i, double most = most_seconds) {
      char* rest = nullptr;
      double const value = std::strtod(words[i].c_str(), &rest);
      if (rest == words[i].c_str() || *rest != '\0' || !(value >= 0 && value <= most))
        refuse(fmt::format("a number from 0 to {}", most), words[i]);
      return value;
    };
    if (words.size() == 2 && words[0] == "send")
      costs.send = number(1);
    else if (words.size() == 2 && words[0] == "receive")
      costs.receive = number(1);
    else if (words.size() == 2 && words[0] == "latency")
      costs.latency = number(1);
    else if (words.size() == 2 && words[0] == "bandwidth")
      costs.bandwidth = number(1, most_bytes);
    else if (words.size() == 2 && words[0] == "message_bytes")
      costs.message_bytes = number(1, most_bytes);
    else if (words.size() == 8 && words[0] == "vocabulary")
      costs.vocabulary = {number(1), number(2), number(3), number(4), number(5), number(6), number(7)};
    else if (words.size() == 4 || words.size() == 5) {
      double const stage = number(0);
      if (stage >= num_stages || stage != std::floor(stage))
        refuse(fmt::format("a stage below {}", num_stages), words[0]);
      auto& cost = costs.stages[static_cast<std::size_t>(stage)];
      if (cost.forward >= 0) refuse(fmt::format("one line for stage {}", stage), row);
      cost = {number(1), number(2), number(3), words.size() == 5 ? number(4) : -1};
    } else {
      refuse(
          "stage,forward,input,weight[,backward], or send, receive, latency, bandwidth or message_bytes and a number",
          row);
    }
  }
  if (costs.bandwidth == 0) refuse("a bandwidth above 0", "0");
  for (std::size_t s = 0; s < costs.stages.size(); ++s)
    if (costs.stages[s].forward < 0)
      refuse(fmt::format("a line for every one of the {} stages", num_stages), fmt::format("none for stage {}", s));
  return costs;
}

}  // namespace p3d::plan
