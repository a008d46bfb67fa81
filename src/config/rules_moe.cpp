// SPDX-License-Identifier: Apache-2.0
// The rules of mixture-of-experts models: the choice of experts, their groups, their division over ranks, and what does
// not work with them yet. A dense model has one rule alone: it must not set keys of experts. Example: experts = 6 with
// ep = 4 is refused, as each rank must hold whole experts; the fix offers the nearest layouts, or 4 or 8 experts.

#include "config/divide.hpp"
#include "config/keys.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::config {

namespace {

constexpr auto section_of_moe = "model.moe", experts_key = "model.moe.experts", expert_ffn_key = "model.moe.ffn";

/// A dense model must not set other keys of [model.moe]: they would say nothing.
void check_unused(Check const& c) {
  Config const plain;
  for (auto const& key : keys()) {
    auto const name = key.full();
    if (key.section != section_of_moe || name == experts_key || !c.known({name})) continue;
    bool const follows = name == expert_ffn_key;
    bool const unused =
        follows ? c.sources.given(name) && c.known({"model.ffn"}) && c.config.model.moe.ffn != c.config.model.ffn
                : key.write(c.config) != key.write(plain);
    if (!unused) continue;
    c.error({name, experts_key}, fmt::format("{} above 0, since {} says something of experts", experts_key, name),
            fmt::format("{} = {}, and no experts", key.name, key.write(c.config)),
            fmt::format("set {}, or remove {}", experts_key, name));
    return;
  }
}

/// A token cannot choose more experts than there are.
void check_chosen(Check const& c) {
  if (!c.known({"model.moe.top_k"})) return;
  auto const& m = c.config.model.moe;
  if (m.top_k <= m.experts) return;
  c.error({"model.moe.top_k", experts_key}, "model.moe.top_k of at most model.moe.experts",
          fmt::format("top_k {} of {}", m.top_k, base::counted(m.experts, "expert")),
          fmt::format("set model.moe.top_k to at most {0}, or model.moe.experts to at least {1}", m.experts, m.top_k));
}

/// The slopes of xIELU are those of one MLP.
void check_activation(Check const& c) {
  if (!c.known({"model.activation"}) || c.config.model.activation != Activation::xielu) return;
  c.error({"model.activation", experts_key}, "an activation function without learned slopes, where a model has experts",
          "activation \"xielu\"",
          fmt::format("set model.activation to \"gelu\" or \"swiglu\", or {} to 0", experts_key));
}

/// Some layer must have experts.
void check_layers(Check const& c) {
  if (!c.known({"model.layers", "model.moe.every", "model.moe.first_dense"})) return;
  auto const& m = c.config.model;
  if (m.moe_layers() > 0) return;
  auto const last = m.layers / m.moe.every * m.moe.every;  // counted from 1; 0: none
  auto const fix =
      last > 0 ? fmt::format("set model.moe.first_dense to at most {}", last - 1)
               : fmt::format("set model.moe.every to at most {}, and model.moe.first_dense below that", m.layers);
  c.error({"model.moe.every", "model.moe.first_dense", "model.layers"}, "a layer with experts",
          fmt::format("none of {}: every {}, first_dense {}", base::counted(m.layers, "layer"), m.moe.every,
                      m.moe.first_dense),
          fix + fmt::format(", or {} to 0", experts_key));
}

/// Groups must have equally many experts, and the chosen ones enough for top_k.
void check_groups(Check const& c) {
  if (!c.known({"model.moe.groups", "model.moe.group_top_k", "model.moe.top_k"})) return;
  auto const& m = c.config.model.moe;
  if (!m.grouped()) {
    if (m.group_top_k <= m.groups) return;
    c.error({"model.moe.group_top_k", "model.moe.groups"}, "model.moe.groups above 1, of which group_top_k are chosen",
            fmt::format("group_top_k {}, groups {}", m.group_top_k, m.groups),
            "set model.moe.groups, or remove model.moe.group_top_k");
    return;
  }
  if (m.experts % m.groups != 0) {
    c.error({"model.moe.groups", experts_key}, "model.moe.experts divisible by model.moe.groups",
            fmt::format("experts {}, groups {}: remainder {}", m.experts, m.groups, m.experts % m.groups),
            fmt::format("set model.moe.groups to {}, or {} to {}", one_of(nearest_divisors(m.groups, m.experts)),
                        experts_key, one_of(nearest_multiples(m.experts, m.groups))));
    return;
  }
  auto const size = m.experts / m.groups, least = std::min((m.top_k + size - 1) / size, m.groups);
  if (m.group_top_k >= least && m.group_top_k <= m.groups) return;
  c.error({"model.moe.group_top_k", "model.moe.groups", "model.moe.top_k", experts_key},
          "model.moe.group_top_k of at most model.moe.groups, with at least top_k experts in the chosen groups",
          fmt::format("group_top_k {} of {} groups of {}, top_k {}", m.group_top_k, m.groups,
                      base::counted(size, "expert"), m.top_k),
          fmt::format("set model.moe.group_top_k to {}",
                      least == m.groups ? fmt::format("{}", least) : fmt::format("{} to {}", least, m.groups)));
}

/// Shared experts are divided over tp, and a gate needs some.
void check_shared(Check const& c) {
  if (!c.known({"model.moe.shared_ffn"})) return;
  auto const& m = c.config.model.moe;
  std::int64_t const tp = c.config.parallel.tp;
  if (c.known({"model.moe.shared_gate"}) && m.shared_gate && m.shared_ffn == 0) {
    c.error({"model.moe.shared_gate", "model.moe.shared_ffn"}, "model.moe.shared_ffn above 0: shared experts to gate",
            "shared_gate true, shared_ffn 0", "set model.moe.shared_ffn, or model.moe.shared_gate to false");
  }
  if (!c.known({"parallel.tp"}) || m.shared_ffn % tp == 0) return;
  c.error({"parallel.tp", "model.moe.shared_ffn"},
          "model.moe.shared_ffn divisible by parallel.tp: each of the tp ranks holds equal parts of the shared experts",
          fmt::format("shared_ffn {}, tp {}: remainder {}", m.shared_ffn, tp, m.shared_ffn % tp),
          fmt::format("set parallel.tp to {}, or model.moe.shared_ffn to {}",
                      one_of(nearest_divisors(tp, m.shared_ffn)), one_of(nearest_multiples(m.shared_ffn, tp))));
}

/// A rate moves the biases of the choice: they must be there.
void check_choice_bias(Check const& c) {
  auto const& m = c.config.model.moe;
  if (!c.known({"model.moe.bias_update_rate", "model.moe.choice_bias"}) || m.choice_bias || m.bias_update_rate == 0.0)
    return;
  c.error({"model.moe.bias_update_rate", "model.moe.choice_bias"},
          "model.moe.choice_bias = true where model.moe.bias_update_rate is above 0: the rate moves these biases",
          fmt::format("bias_update_rate {}, choice_bias false", m.bias_update_rate),
          "set model.moe.bias_update_rate to 0, or remove model.moe.choice_bias");
}

/// Every rank of a stage routes tokens of its own, so tokens must be divided over tp.
void check_tokens_of_ranks(Check const& c) {
  if (!c.known({"parallel.tp", "parallel.sequence"})) return;
  auto const& p = c.config.parallel;
  if (p.tp == 1 || p.sequence) return;
  c.error({"parallel.sequence", "parallel.tp", experts_key},
          "parallel.sequence = true with tp > 1 and experts: the tokens are divided over all ranks of a stage",
          fmt::format("sequence false, tp {}", p.tp), "set parallel.sequence to true, or parallel.tp to 1");
}

/// Whole experts are divided over ep, and each one over etp.
void check_division(Check const& c) {
  if (!c.known(axis_keys(key_axes)) || !c.known({"parallel.order"})) return;
  auto const& p = c.config.parallel;
  auto const sizes = with_rest(p);
  if (sizes.product(expert_axes) == 0) return;  // the rule of the mesh reports it
  auto const order = complete_order(read_order(p.order).axes);
  if (!refine(p, order)) return;
  struct DividedExperts {
    Axis axis;
    char const* key;
    std::int64_t size;
    char const* what;
  };
  auto const& m = c.config.model.moe;
  for (auto const& row : {DividedExperts{Axis::ep, experts_key, m.experts, "whole experts"},
                          DividedExperts{Axis::etp, expert_ffn_key, m.ffn, "an equal part of each of its experts"}}) {
    std::int64_t const ranks = p[row.axis];
    if (!c.known({row.key}) || row.size % ranks == 0) continue;
    auto const* axis_key = row_of(row.axis).key;
    c.error({axis_key, row.key}, fmt::format("{} divisible by {}: each rank holds {}", row.key, axis_key, row.what),
            fmt::format("{} {}, {} {}: remainder {}", std::string_view(row.key).substr(10), row.size, name(row.axis),
                        ranks, row.size % ranks),
            fmt::format("{}, or {} to {}", nearest_layouts(sizes, order, experts_fit(c)), row.key,
                        one_of(nearest_multiples(row.size, ranks))));
  }
}

/// Keys that do not work with experts, or with some of their options, yet.
void check_together(Check const& c) {
  auto const& m = c.config.model.moe;
  auto const refuse = [&](bool wrong, std::vector<std::string_view> const& keys, char const* expected,
                          std::string const& found, char const* fix) {
    if (wrong && c.known(keys)) c.error(keys, expected, found, fix);
  };
  refuse(c.config.batch.variable, {"batch.variable", experts_key}, "samples of one length where there are experts",
         "batch.variable", "remove batch.variable (data.pack shares windows between documents)");
  refuse(c.config.memory.offload_activations != OffloadTo::none, {"memory.offload_activations", experts_key},
         "resident activations where there are experts: they include who sends which rows",
         fmt::format("offload_activations \"{}\"", to_string(c.config.memory.offload_activations)),
         "remove memory.offload_activations; memory.recompute saves activations too");
  auto const& memory = c.config.memory;
  bool const offloads = memory.offload_optimizer != OffloadTo::none || memory.offloads_parameters();
  refuse(m.changes_router() && offloads,
         {"memory.offload_optimizer", "memory.offload_parameters", "model.moe.bias_update_rate", "model.moe.aux_loss"},
         "resident weights where the choices of a batch change the router of the next one (bias_update_rate, aux_loss "
         "\"global\")",
         "memory.offload_optimizer or memory.offload_parameters",
         "remove it, or balance by model.moe.aux_loss = \"sequence\"");
  refuse(m.capacity_factor > 0 && c.config.parallel.cp > 1 && c.config.context.order != ContextOrder::contiguous,
         {"model.moe.capacity_factor", "context.order", "parallel.cp"},
         "context.order = \"contiguous\" where an expert takes the first tokens of a sequence (capacity_factor)",
         fmt::format("order \"{}\", cp {}", to_string(c.config.context.order), c.config.parallel.cp),
         "set context.order to \"contiguous\", or model.moe.capacity_factor to 0");
  refuse(m.aux_loss == AuxLoss::sequence && c.config.data.pack, {"model.moe.aux_loss", "data.pack"},
         "one document in each sample, which is what model.moe.aux_loss = \"sequence\" balances",
         "aux_loss \"sequence\" with data.pack", "balance by model.moe.bias_update_rate, or remove data.pack");
}

/// comm.overlap_experts hides the messages of experts and nothing else: it needs some.
void check_overlap(Check const& c) {
  constexpr auto key = "comm.overlap_experts";
  if (!c.known({key, "parallel.ep", "parallel.etp"}) || !c.config.comm.overlap_experts) return;
  auto const& p = c.config.parallel;
  if (c.config.model.moe.on() && p.ep * p.etp != 1) return;
  c.error({key, "parallel.ep", "parallel.etp", experts_key}, "experts on several ranks, whose messages can be hidden",
          fmt::format("{}, ep {}, etp {}", base::counted(c.config.model.moe.experts, "expert"), p.ep, p.etp),
          "set parallel.ep or parallel.etp above 1, or comm.overlap_experts to false");
}

}  // namespace

SizesFit experts_fit(Check const& c) {
  auto const& m = c.config.model.moe;
  auto const experts = c.known({experts_key}) ? m.experts : 0, ffn = c.known({expert_ffn_key}) ? m.ffn : 0;
  if (experts == 0) return {};
  return [=](PerAxis const& sizes) { return experts % sizes.ep == 0 && ffn % sizes.etp == 0; };
}

void check_moe(Check const& check) {
  if (!check.known({experts_key})) return;
  check_overlap(check);
  if (!check.config.model.moe.on()) return check_unused(check);
  check_chosen(check);
  check_activation(check);
  check_layers(check);
  check_groups(check);
  check_shared(check);
  check_choice_bias(check);
  check_tokens_of_ranks(check);
  check_division(check);
  check_together(check);
}

}  // namespace p3d::config
