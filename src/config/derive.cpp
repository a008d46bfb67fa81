// SPDX-License-Identifier: Apache-2.0
// The values of keys that nobody wrote and that follow from others. The order matters: a value must be known before
// another one follows from it.
#include "config/rules.hpp"

#include "config/keys.hpp"
#include "config/rope_scaling.hpp"

#include <p3d/config/refinement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace p3d::config {

namespace {

/// Calls `set` for a key that nobody set, if everything that it follows from is known. `set` returns false when it
/// cannot derive the value; the key is then marked open.
template <class Set>
void follow(Sources& sources, char const* key, std::vector<std::string_view> const& from, Set const& set) {
  if (sources.given(key) || sources.from_preset(key) || !sources.known(key)) return;
  bool const can = std::all_of(from.begin(), from.end(), [&](auto f) { return sources.known(f); });
  if (!can || !set()) sources.set_open(key);
}

}  // namespace

std::vector<std::string> const& layout_keys() {
  static std::vector<std::string> const all = [] {
    std::vector<std::string> out;
    // Experts are divided as the other weights are: etp follows from tp.
    for (auto key : axis_keys(key_axes.minus({Axis::etp}))) out.emplace_back(key);
    for (char const* key : {"parallel.sequence", "batch.micro", "pipeline.schedule", "pipeline.virtual_stages",
                            "pipeline.vocab_parallel", "memory.recompute", "memory.shard"})
      out.emplace_back(key);
    return out;
  }();
  return all;
}

void derive(Config& config, Sources& sources, int num_ranks) {
  for (auto const& key : layout_keys())
    if (sources.given(key)) config.plan.given.keys.push_back(key);
  auto& m = config.model;
  follow(sources, "model.kv_heads", {"model.heads"}, [&] { return m.kv_heads = m.heads, true; });
  follow(sources, "model.mla.v_head_dim", {"model.mla.qk_nope_head_dim"},
         [&] { return m.mla.v_head_dim = m.mla.qk_nope_head_dim, true; });
  follow(sources, "model.head_dim", {"model.hidden", "model.heads"}, [&] {
    if (m.mla.on()) return m.head_size = m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim, true;
    if (m.hidden % m.heads != 0) return false;
    return m.head_size = m.hidden / m.heads, true;
  });
  follow(sources, "model.qkv_bias", {"model.bias"}, [&] { return m.qkv_bias = m.bias, true; });
  follow(sources, "model.ffn", {"model.hidden", "model.activation"}, [&] {
    // With a gate there are three matrices instead of two: 2/3 of the width keeps the number of parameters (Shazeer
    // 2020, "GLU variants improve transformer").
    m.ffn = m.gated() ? ((8 * m.hidden + 2) / 3 + 15) / 16 * 16 : 4 * m.hidden;
    return true;
  });

  if (m.rope_scaling == RopeScaling::none && m.load.empty())
    visit_scaling_keys(m, [&](char const* key, auto member) {
      if (sources.from_preset(key)) m.*member = Model{}.*member;
    });

  follow(sources, "model.moe.ffn", {"model.ffn"}, [&] { return m.moe.ffn = m.ffn, true; });
  follow(sources, "model.moe.choice_bias", {"model.moe.bias_update_rate"},
         [&] { return m.moe.choice_bias = m.moe.bias_update_rate > 0, true; });

  auto& p = config.parallel;
  // Without dp in the input the replicas are the factor of the number of ranks that the other axes leave.
  auto const others = dense_axes.minus({Axis::dp});
  follow(sources, "parallel.dp", axis_keys(others), [&] {
    auto const below = p.product(others);
    if (num_ranks == 0) return p.dp = 1, true;
    if (num_ranks % below != 0) return false;
    return p.dp = static_cast<int>(num_ranks / below), true;
  });
  auto const rest = with_rest(p);
  if (sources.known("parallel.dp") && rest.product(expert_axes) > 0) static_cast<PerAxis&>(p) = rest;

  follow(sources, "context.order", {"data.pack"}, [&] {
    config.context.order = config.data.pack ? ContextOrder::striped : ContextOrder::zigzag;
    return true;
  });

  auto& b = config.batch;
  if (sources.given("batch.global")) {
    follow(sources, "batch.microbatches", {"batch.micro", "parallel.dp"}, [&] {
      if (b.global % (b.micro * p.dp) != 0) return false;
      return b.microbatches = b.global / (b.micro * p.dp), true;
    });
  } else if (sources.known("batch.global")) {
    follow(sources, "batch.microbatches", {"parallel.pp"}, [&] { return b.microbatches = p.pp, true; });
    follow(sources, "batch.global", {"batch.micro", "batch.microbatches", "parallel.dp"},
           [&] { return b.global = b.micro * b.microbatches * p.dp, true; });
  } else {
    follow(sources, "batch.microbatches", {"batch.global"}, [] { return true; });
  }

  auto& types = config.precision;
  follow(sources, "precision.moments", {"run.precision"}, [&] {
    return types.moments = config.run.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32, true;
  });
  follow(sources, "precision.gradients", {"run.precision"}, [&] {
    return types.gradients = config.run.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32, true;
  });
  follow(sources, "precision.reduction", {"precision.gradients"},
         [&] { return types.reduction = types.gradients, true; });
  follow(sources, "precision.pipeline", {"run.precision"}, [&] { return types.pipeline = config.run.precision, true; });
  follow(sources, "precision.loss_scale", {"run.precision", "precision.autocast"}, [&] {
    return types.loss_scaling = computes_in_fp16(config) ? LossScaling::dynamic : LossScaling::none, true;
  });

  apply_memory_preset(config, sources);
  // Offloaded weights are gathered for every use by default: with once a step, all layers of a rank would be in memory
  // between the first forward and the last backward of a step.
  follow(sources, "memory.gather", {"memory.offload_parameters"}, [&] {
    if (config.memory.offloads_parameters()) config.memory.gather = MessageEvery::microbatch;
    return true;
  });
  if (config.memory.limit > 0) {
    // memory.limit may choose the keys that neither the input nor a preset sets.
    auto const open = [&](char const* key) { return !sources.given(key) && !sources.from_preset(key); };
    bool const chooses = open("memory.recompute") || config.memory.recompute == Recompute::automatic;
    config.memory.free = {.recompute = chooses,
                          .shard = open("memory.shard") && p.product(token_axes) > 1,
                          .gather = open("memory.gather"),
                          .reduce = open("memory.reduce"),
                          .offload_optimizer = open("memory.offload_optimizer"),
                          .offload_parameters = open("memory.offload_parameters") && open("memory.gather"),
                          .offload_activations = open("memory.offload_activations")};
  }

  // The division is rounded to the double nearest to the decimal: 3e-3 gives 3e-4 and not 3.0000000000000003e-4.
  // (std::strtod, as std::stod throws below 1e-307.)
  auto const tenth = fmt::format("{:.15g}", config.optimizer.lr / 10);
  follow(sources, "optimizer.min_lr", {"optimizer.lr"},
         [&] { return config.optimizer.min_lr = std::strtod(tenth.c_str(), nullptr), true; });
  follow(sources, "run.file_timeout_s", {"comm.timeout_s"}, [&] {
    config.run.file_timeout_s = std::max(config.run.file_timeout_s, config.comm.timeout_s);
    return true;
  });
  follow(sources, "run.output_dir", {"run.name"},
         [&] { return config.run.output_dir = absolute_path("runs/" + config.run.name, ""), true; });
  follow(sources, "checkpoint.dir", {"run.output_dir"},
         [&] { return config.checkpoint.dir = config.run.output_dir + "/checkpoints", true; });
}

std::vector<std::string_view> axis_keys(AxisSet axes) {
  std::vector<std::string_view> out;
  for (auto a : axes.list()) out.emplace_back(row_of(a).key);
  return out;
}

bool Check::known(std::vector<std::string_view> const& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](auto key) { return sources.known(key); });
}

void Check::error(std::vector<std::string_view> const& keys, std::string expected, std::string found,
                  std::string fix) const {
  std::string where;
  for (auto key : keys) {
    if (!where.empty()) where += "; ";
    where += sources.place(key, config);
  }
  errors.add(KeyErrors::between_keys(), {.key = std::string(keys.front()),
                                         .where = std::move(where),
                                         .expected = std::move(expected),
                                         .found = std::move(found),
                                         .fix = std::move(fix)});
}

}  // namespace p3d::config
