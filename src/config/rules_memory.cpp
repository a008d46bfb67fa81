// SPDX-License-Identifier: Apache-2.0
// The rules of [memory]: each key must have something to act on. A key that would have no effect is an error, with the
// key that it needs: an input that looks as if it saved memory and does not would be found out hours later. Example:
// memory.shard = "optimizer" with one replica is refused, as nothing would be divided.
#include "config/rules.hpp"

#include <p3d/base/text.hpp>
#include <p3d/config/optimizer_state.hpp>

#include <fmt/format.h>

#include <string>

namespace p3d::config {

namespace {

/// recompute = "auto" needs a limit to choose within.
void check_auto(Check const& c) {
  auto const& m = c.config.memory;
  if (c.known({"memory.recompute", "memory.limit"}) && m.recompute == Recompute::automatic && m.limit == 0)
    c.error({"memory.recompute", "memory.limit"}, "memory.limit, within which \"auto\" chooses", "none",
            "set memory.limit to the GiB that a rank may use, or say what to recompute");
}

/// Keys that are read only with recompute = "full" are refused without it: nothing is ignored.
void check_recompute_keys(Check const& c) {
  auto const& m = c.config.memory;
  if (!c.known({"memory.recompute"}) || m.recompute == Recompute::full) return;
  Memory const none;
  auto const refuse = [&](char const* key, bool used) {
    if (used && c.known({key}))
      c.error({key, "memory.recompute"}, fmt::format("{} only with recompute = \"full\"", key), "another recompute",
              fmt::format("set memory.recompute to \"full\", or remove {}", key));
  };
  refuse("memory.recompute_every", m.recompute_every != none.recompute_every);
  refuse("memory.recompute_layers", m.recompute_layers != none.recompute_layers);
  refuse("memory.recompute_group", m.recompute_group != none.recompute_group);
  refuse("memory.recompute_microbatches_kept", m.recompute_microbatches_kept != none.recompute_microbatches_kept);
  refuse("memory.recompute_communication", m.recompute_communication != none.recompute_communication);
  refuse("memory.share_saved_inputs", m.share_saved_inputs != none.share_saved_inputs);
}

/// Values of the keys of "full" that exclude each other.
void check_full_recompute(Check const& c) {
  auto const& m = c.config.memory;
  if (!c.known({"memory.recompute"}) || m.recompute != Recompute::full) return;
  bool const every = c.known({"memory.recompute_every"}) && m.recompute_every > 1;
  bool const group = c.known({"memory.recompute_group"}) && m.recompute_group > 1;
  if (every && c.known({"memory.recompute_layers"}) && m.recompute_layers > 0)
    c.error({"memory.recompute_every", "memory.recompute_layers"}, "every n-th layer, or the first n",
            fmt::format("recompute_every {}, recompute_layers {}", m.recompute_every, m.recompute_layers),
            "remove one of the two");
  if (every && group)
    c.error({"memory.recompute_group", "memory.recompute_every"}, "groups of neighbouring layers",
            fmt::format("recompute_group {} of every {}th layer", m.recompute_group, m.recompute_every),
            "remove one of the two");
  bool const keeps_sums = c.known({"memory.recompute_communication"}) && !m.recompute_communication;
  if (group && keeps_sums)
    c.error({"memory.recompute_group", "memory.recompute_communication"},
            "groups whose all-reduces over tp are made again: kept ones are all that a group saves",
            fmt::format("recompute_group {}, recompute_communication false", m.recompute_group),
            "remove one of the two");
  if (!c.known({"parallel.tp"}) || c.config.parallel.tp > 1) return;
  auto const needs_tp = [&](char const* key, char const* what, bool used) {
    if (used)
      c.error({key, "parallel.tp"}, fmt::format("parallel.tp above 1: {}", what), "tp 1",
              fmt::format("remove {}, or raise parallel.tp", key));
  };
  needs_tp("memory.recompute_communication", "one rank makes no all-reduces over tp to keep", keeps_sums);
  needs_tp("memory.share_saved_inputs", "one rank has nobody to share inputs with",
           c.known({"memory.share_saved_inputs"}) && m.share_saved_inputs);
}

/// Sequence parallelism divides the rows of a microbatch over tp: each rank must get at least one.
void check_sequence(Check const& c) {
  auto const& p = c.config.parallel;
  if (!c.known({"parallel.sequence"}) || !p.sequence) return;
  auto const& m = c.config.memory;
  if (c.known({"memory.share_saved_inputs"}) && m.share_saved_inputs)
    c.error({"memory.share_saved_inputs", "parallel.sequence"}, "inputs that all ranks of tp hold, to share them",
            "parallel.sequence, which divides them already", "remove memory.share_saved_inputs");
  if (!c.known({"parallel.tp"})) return;
  if (p.tp == 1)
    c.error({"parallel.sequence", "parallel.tp"}, "parallel.tp above 1: one rank has nobody to divide tokens with",
            "tp 1", "remove parallel.sequence, or raise parallel.tp");
  if (!c.known({"batch.micro", "model.seq_len", "parallel.cp"})) return;
  auto const tokens = c.config.batch.micro * (c.config.model.seq_len / p.cp);
  if (tokens < p.tp)
    c.error({"parallel.sequence", "parallel.tp", "batch.micro", "model.seq_len"},
            "a token of every microbatch (batch.micro x model.seq_len / parallel.cp) for each rank of tp",
            fmt::format("{} x {} / {} = {} for tp {}", c.config.batch.micro, c.config.model.seq_len, p.cp,
                        base::counted(tokens, "token"), p.tp),
            "remove parallel.sequence, lower parallel.tp, or raise batch.micro");
}

/// Keys of sharding need replicas, and something that is divided.
void check_shard_keys(Check const& c) {
  auto const& m = c.config.memory;
  if (!c.known({"memory.shard"})) return;
  if (c.known({"memory.gather", "memory.offload_parameters"}) && m.gather != MessageEvery::step && !m.moves_weights())
    c.error(
        {"memory.gather", "memory.shard"}, "memory.gather only with shard = \"parameters\" or with offload_parameters",
        fmt::format("shard \"{}\"", to_string(m.shard)), "set memory.shard to \"parameters\", or remove memory.gather");
  if (c.known({"memory.reduce"}) && m.reduce != MessageEvery::step && m.shard < Shard::gradients)
    c.error({"memory.reduce", "memory.shard"},
            "memory.reduce = \"microbatch\" only with shard = \"gradients\" or \"parameters\": it saves no memory else",
            fmt::format("shard \"{}\"", to_string(m.shard)),
            "set memory.shard to one of these, or remove memory.reduce");
  if (c.known(axis_keys(token_axes)) && m.divides() && c.config.parallel.product(token_axes) == 1)
    c.error({"memory.shard", "parallel.dp"}, "at least two replicas (parallel.dp x cp) to divide the state",
            "dp 1, cp 1", "raise parallel.dp, or remove memory.shard");
  if (c.known({"memory.shard_over", "parallel.cp"}) && m.shard_over > 0 && c.config.parallel.cp > 1)
    c.error({"memory.shard_over", "parallel.cp"}, "memory.shard_over only with parallel.cp = 1",
            fmt::format("shard_over {}, cp {}", m.shard_over, c.config.parallel.cp),
            "remove memory.shard_over: the state is divided over dp x cp");
  if (c.known({"memory.shard_over", "parallel.dp"}) && m.shard_over > 0) {
    auto const dp = c.config.parallel.dp;
    if (m.shard == Shard::none)
      c.error({"memory.shard_over", "memory.shard"}, "memory.shard_over only with something to divide",
              "shard \"none\"", "set memory.shard, or remove memory.shard_over");
    else if (dp % m.shard_over != 0 || m.shard_over == 1)
      c.error({"memory.shard_over", "parallel.dp"}, "a divisor of parallel.dp above 1",
              fmt::format("shard_over {}, dp {}", m.shard_over, dp), "choose one, or 0 for all replicas");
  }
}

/// Offloaded activations need microbatches of one length, enough of them, and none that are kept.
void check_offload_activations(Check const& c) {
  auto const& m = c.config.memory;
  if (!c.known({"memory.offload_activations"}) || m.offload_activations == OffloadTo::none) return;
  if (c.known({"memory.recompute_microbatches_kept"}) && m.recompute_microbatches_kept > 0)
    c.error({"memory.offload_activations", "memory.recompute_microbatches_kept"},
            "microbatches that are kept in memory, or offloaded",
            fmt::format("recompute_microbatches_kept {}, offload_activations \"{}\"", m.recompute_microbatches_kept,
                        to_string(m.offload_activations)),
            "remove one of the two");
  if (c.known({"batch.variable"}) && c.config.batch.variable)
    c.error({"memory.offload_activations", "batch.variable"},
            "microbatches of one length where activations are offloaded", "batch.variable",
            "remove memory.offload_activations, or batch.variable");
  auto const microbatches = c.config.batch.microbatches;
  if (c.known({"batch.microbatches"}) && microbatches < 3)
    c.error({"memory.offload_activations", "batch.microbatches"},
            "at least 3 microbatches: two are in memory, the others wait", fmt::format("{}", microbatches),
            "lower batch.micro, or remove memory.offload_activations");
}

/// Offloading needs a state to offload, in types and parts that can be moved.
void check_offload_keys(Check const& c) {
  auto const& m = c.config.memory;
  if (c.known({"memory.offload_parameters", "memory.shard"}) && m.offloads_parameters() && m.divides() &&
      m.shard != Shard::parameters)
    c.error({"memory.offload_parameters", "memory.shard"},
            "offloaded weights that ranks own whole (shard \"none\") or in parts (shard \"parameters\")",
            fmt::format("shard \"{}\"", to_string(m.shard)), "set memory.shard to \"parameters\"");
  if (!c.known(
          {"memory.offload_optimizer", "run.precision", "optimizer.type", "optimizer.delay", "precision.moments"}) ||
      m.offload_optimizer == OffloadTo::none)
    return;
  if (state_of(c.config.optimizer_with_versions()).arrays.empty() && !is_16bit(c.config.run.precision))
    c.error({"memory.offload_optimizer", "optimizer.type"}, "an optimizer with state, to offload it",
            fmt::format("type \"{}\" in {}, which has none", to_string(c.config.optimizer.type),
                        to_string(c.config.run.precision)),
            "remove memory.offload_optimizer, or choose \"adamw\"");
  if (c.config.precision.moments == Precision::bf16)
    c.error({"memory.offload_optimizer", "precision.moments"}, "moments in fp32 where they are offloaded", "bf16",
            "remove precision.moments or memory.offload_optimizer");
}

}  // namespace

void check_memory(Check const& check) {
  check_auto(check);
  check_recompute_keys(check);
  check_full_recompute(check);
  check_sequence(check);
  check_shard_keys(check);
  check_offload_activations(check);
  check_offload_keys(check);
}

}  // namespace p3d::config
