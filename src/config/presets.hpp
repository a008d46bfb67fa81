// SPDX-License-Identifier: Apache-2.0
#pragma once
// Known models by name, for model.preset.

#include <p3d/config/config.hpp>

#include <cstdint>
#include <string_view>

namespace p3d::config {

/// A row of the table: the sizes of a model; its family says the rest. 0 stands for "follows": kv_heads from heads, ffn
/// from the hidden size.
struct Preset {
  enum class Family { gpt, llama };
  char const* name;
  Family family;
  std::int64_t hidden, layers, heads, kv_heads, ffn, seq_len, vocab_size;
  double rope_theta;
  bool tied;  ///< embedding and output layer share their weights
  Moe moe{};
};

/// The preset of a name; null when there is none.
Preset const* find_preset(std::string_view name);
/// Sets all of `model` except kv_heads and ffn where the preset lets them follow.
void apply(Preset const& preset, Model& model);

}  // namespace p3d::config
