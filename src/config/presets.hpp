// SPDX-License-Identifier: Apache-2.0
#pragma once
// Known models by name, for model.preset.

#include <p3d/config/config.hpp>

#include <cstdint>
#include <string_view>

namespace p3d::config {

/// A row of the table: the sizes of a model; its family says the rest. 0 stands for "follows": kv_heads from heads, ffn
/// from the hidden size, head_dim from both.
struct Preset {
  enum class Family { gpt, llama };
  char const* name;
  Family family;
  std::int64_t hidden, layers, heads, kv_heads, ffn, seq_len, vocab_size;
  double rope_theta;
  bool tied;                       ///< embedding and output layer share their weights
  void (*more)(Model&) = nullptr;  ///< sets what the other members do not say
  Moe moe{};
  std::int64_t head_dim = 0;
  bool qkv_bias = false;  ///< false: as the other linears
};

/// The preset of a name; null when there is none.
Preset const* find_preset(std::string_view name);
/// Sets all of `model` except kv_heads, head_dim, qkv_bias and ffn where the preset lets them follow.
void apply(Preset const& preset, Model& model);

}  // namespace p3d::config
