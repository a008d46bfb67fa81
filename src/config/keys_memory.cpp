// SPDX-License-Identifier: Apache-2.0
// The keys of [memory]: recomputation, division over replicas, offloading.

#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/section.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace p3d::config {

namespace {

// The operations that memory.recompute may name, with their members.
using OpMember = std::pair<char const*, bool RecomputedOps::*>;
constexpr std::array<OpMember, 4> recomputed_ops{{{"norm", &RecomputedOps::norm},
                                                  {"activation", &RecomputedOps::activation},
                                                  {"rotary", &RecomputedOps::rotary},
                                                  {"attention", &RecomputedOps::attention}}};

/// Reads memory.recompute: "none", "full", "auto" or a list of operations.
MaybeMismatch read_recompute(toml::node const& node, std::string const&, Config& config) {
  auto& m = config.memory;
  std::vector<std::string> names;
  for (auto const& op : recomputed_ops) names.emplace_back(op.first);
  if (auto const* list = node.as_array()) {
    RecomputedOps ops;
    auto const read_one = [&](toml::node const& element) {
      std::size_t index = 0;
      auto mismatch = read_choice(element, names, index);
      if (!mismatch) ops.*recomputed_ops[index].second = true;
      return mismatch;
    };
    if (auto mismatch = read_list(*list, read_one)) return mismatch;
    if (!ops.any())
      return Mismatch{&node, "an empty list", "name operations, such as [\"norm\", \"activation\"], or write \"none\""};
    m.recompute = Recompute::list;
    m.recompute_ops = ops;
    return {};
  }
  if (auto mismatch = read_enum(node, m.recompute)) {
    if (!node.is_string())
      mismatch->fix = "use \"none\", \"full\", \"auto\" or a list of operations, such as [\"norm\", \"activation\"]";
    return mismatch;
  }
  m.recompute_ops = {};
  return {};
}

/// Writes memory.recompute.
std::string write_recompute(Config const& config) {
  auto const& m = config.memory;
  if (m.recompute != Recompute::list) return toml_string(to_string(m.recompute));
  std::vector<std::string> names;
  for (auto const& [name, member] : recomputed_ops) {
    if (m.recompute_ops.*member) names.emplace_back(name);
  }
  return toml_list(names);
}

void add_recompute(Section<Memory>& s) {
  s.add("recompute", "\"none\" | \"full\" | \"auto\" | list of norm, activation, rotary, attention",
        "what forward discards and backward makes again: nothing; all of a layer but its input; what is cheapest "
        "and fits; or outputs of these operations (rotary costs no memory: it works in place)",
        nullptr, read_recompute, write_recompute);
  s.integer("recompute_every", &Memory::recompute_every, {1, limits::layers}, "of full: every n-th layer of a stage");
  s.integer("recompute_layers", &Memory::recompute_layers, {0, limits::layers},
            "of full: only the first n layers of each stage; 0: all");
  s.integer("recompute_group", &Memory::recompute_group, {1, limits::layers},
            "of full: so many layers in a row keep one input, and are made again together");
  s.integer("recompute_microbatches_kept", &Memory::recompute_microbatches_kept, {0, limits::axis},
            "of full: so many microbatches in flight keep all their activations");
  s.flag(
      "recompute_communication", &Memory::recompute_communication,
      "of full: all-reduces over tp are made again with the rest; false: their results are kept, which costs memory");
  s.flag("share_saved_inputs", &Memory::share_saved_inputs,
         "of full: the inputs that layers keep are divided over tp, and gathered for backward");
}

void add_shard(Section<Memory>& s) {
  s.choice("shard", &Memory::shard,
           "state that replicas (dp) divide among them: moments and master weights, gradients too, weights too (ZeRO "
           "1, 2, 3)");
  s.integer("shard_over", &Memory::shard_over, {0, limits::axis},
            "neighbouring replicas that divide it, a divisor of parallel.dp (hybrid sharding); 0: all");
  s.integer("shard_layers", &Memory::shard_layers, {1, limits::layers},
            "layers whose weights, or gradients, come and go together where they are divided");
  s.choice(
      "gather", &Memory::gather,
      "with shard = \"parameters\" or offload_parameters: weights come once a step, or for every use: less memory, "
      "more communication; default step, with offload_parameters microbatch");
  s.choice("reduce", &Memory::reduce,
           "gradients are summed over replicas once a step, or after every microbatch: with shard = \"gradients\" less "
           "memory, more communication, and another order of additions");
}

void add_offload(Section<Memory>& s) {
  s.choice("offload_optimizer", &Memory::offload_optimizer,
           "where moments and master weights wait between updates: host (GPU builds), or a file of each rank");
  s.choice("offload_parameters", &Memory::offload_parameters,
           "where weights wait between uses: host (GPU builds), or a file of each rank");
  s.choice("offload_activations", &Memory::offload_activations,
           "where activations of all but two microbatches (or 1 + pipeline.lookahead) wait for backward: host (GPU "
           "builds), or a file of each rank");
  s.add(
      "offload_dir", "string: a folder", "node-local folder for offloading to disk", "$TMPDIR, or /tmp",
      [](toml::node const& node, std::string const&, Config& config) {
        std::string path;
        auto const mismatch = read_string(node, true, path);
        if (!mismatch) config.memory.offload_dir = path.empty() ? "" : absolute_path(path, "");
        return mismatch;
      },
      [](Config const& config) { return toml_string(config.memory.offload_dir); });
}

}  // namespace

void add_memory(std::vector<Key>& table) {
  Section<Memory> s(table, "memory", &Config::memory);
  s.name("preset", &Memory::preset, {"", "none", "low", "medium", "high", "extreme", "basic", "standard", "aggressive"},
         "one word for several keys of memory, each with less memory and more time than the one before; keys that the "
         "input gives win; basic, standard and aggressive are other names of none, medium and high");
  s.number(
      "limit", &Memory::limit, {.max = 1e9},
      "GiB that a rank may use; of recompute, shard, gather, reduce, offload_optimizer and offload_parameters, where "
      "the input does not give them, the quickest that fits is taken, and where none does, offload_activations is "
      "tried too; 0: any");
  add_recompute(s);
  add_shard(s);
  add_offload(s);
}

}  // namespace p3d::config
