// SPDX-License-Identifier: Apache-2.0
// The keys that memory.preset stands for. A preset never changes the answer: it names keys that keep every bit. The
// exception is parallel.sequence, which adds over tp in another order of rounding.
//
//              recompute            shard        gather       sequence   lookahead   offload
//   low        norm, activation     optimizer    -            tp > 1     -           -
//   medium     every second layer   optimizer    -            tp > 1     -           -
//   high       every layer          gradients    -            tp > 1     0           -
//   extreme    every layer          parameters   microbatch   tp > 1     0           to disk
//
// Sharding needs replicas (dp > 1). Compressed gradients are divided no further than "optimizer", as a worker's is
// whole where it is compressed, and with optimizer.post_validation nothing is moved to a disk.

#include "config/rules.hpp"

#include <p3d/config/optimizer_state.hpp>

#include <string_view>

namespace p3d::config {

namespace {

// Each level takes less memory and more time than the one before.
enum class Level { none, low, medium, high, extreme };

Level level_of(std::string_view name) {
  if (name == "low") return Level::low;
  if (name == "medium" || name == "standard") return Level::medium;
  if (name == "high" || name == "aggressive") return Level::high;
  return name == "extreme" ? Level::extreme : Level::none;
}

/// Sets the keys of a preset, one function for each column of the table. A key that the input gives is left alone.
class Expansion {
public:
  Expansion(Config& config, Sources& sources) : c_(config), sources_(sources), level_(level_of(config.memory.preset)) {}

  void recompute() {
    auto& m = c_.memory;
    if (!free("memory.recompute")) return;
    set("memory.recompute");
    if (level_ == Level::none) return;
    m.recompute = level_ == Level::low ? Recompute::list : Recompute::full;
    if (level_ == Level::low) m.recompute_ops = {.norm = true, .activation = true};
    bool const alone = free("memory.recompute_layers") && free("memory.recompute_group");
    if (level_ != Level::medium || !alone || !free("memory.recompute_every")) return;
    m.recompute_every = 2;
    set("memory.recompute_every");
  }

  void shard() {
    auto& m = c_.memory;
    if (!sources_.known("parallel.dp") || c_.parallel.product(token_axes) == 1 || !free("memory.shard")) return;
    set("memory.shard");
    if (level_ == Level::none) return;
    m.shard = level_ < Level::high || c_.compresses() ? Shard::optimizer
              : level_ == Level::extreme              ? Shard::parameters
                                                      : Shard::gradients;
    if (m.shard != Shard::parameters || !free("memory.gather")) return;
    m.gather = MessageEvery::microbatch;
    set("memory.gather");
  }

  /// Divides tokens over tp. Not with share_saved_inputs: inputs that are kept divided are divided already.
  void sequence() {
    auto& p = c_.parallel;
    auto const tokens = c_.batch.micro * (c_.model.seq_len / p.cp);
    bool const can = sources_.known("parallel.tp") && p.tp > 1 && tokens >= p.tp && !c_.memory.share_saved_inputs;
    if (level_ == Level::none || !can || !free("parallel.sequence")) return;
    p.sequence = true;
    set("parallel.sequence");
  }

  void lookahead() {
    if (level_ < Level::high || !free("pipeline.lookahead")) return;
    c_.pipeline.lookahead = 0;
    set("pipeline.lookahead");
  }

  /// Moves the optimizer's state. Parameters are left in memory: once they are divided they are the smallest part, and
  /// they would be read for each use.
  void offload() {
    auto& m = c_.memory;
    if (free("memory.offload_parameters")) set("memory.offload_parameters");
    bool const has_state = !state_of(c_.optimizer_with_versions()).arrays.empty() || is_16bit(c_.run.precision);
    bool const can = has_state && c_.precision.moments != Precision::bf16 && !c_.model.moe.changes_router() &&
                     !c_.optimizer.post_validation;
    if (!free("memory.offload_optimizer") || !can) return;
    set("memory.offload_optimizer");
    if (level_ == Level::extreme) m.offload_optimizer = OffloadTo::disk;
  }

  /// Moves activations, except the ones of two microbatches.
  void offload_activations() {
    auto& m = c_.memory;
    bool const can = sources_.known("batch.microbatches") && c_.batch.microbatches >= 3 && !c_.batch.variable &&
                     !c_.model.moe.on() && !c_.optimizer.post_validation;
    if (!free("memory.offload_activations") || !can || m.recompute_microbatches_kept > 0) return;
    set("memory.offload_activations");
    if (level_ == Level::extreme) m.offload_activations = OffloadTo::disk;
  }

private:
  /// True when nobody gave the key, and its value is known.
  bool free(char const* key) const { return !sources_.given(key) && sources_.known(key); }
  void set(char const* key) { sources_.set_preset(key, "memory.preset"); }

  Config& c_;
  Sources& sources_;
  Level level_;
};

}  // namespace

void apply_memory_preset(Config& config, Sources& sources) {
  if (!sources.known("memory.preset") || config.memory.preset.empty()) return;
  Expansion expansion(config, sources);
  expansion.recompute();
  expansion.shard();
  expansion.sequence();
  expansion.lookahead();
  expansion.offload();
  expansion.offload_activations();
}

}  // namespace p3d::config
