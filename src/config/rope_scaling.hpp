// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys that say how rotary positions are scaled. Without model.rope_scaling they have no effect: an input that
// gives one is refused, and those of a preset whose scaling is switched off fall back to their defaults.

#include <p3d/config/model.hpp>

namespace p3d::config {

/// Calls visit(key, member of Model) for each key that has an effect with model.rope_scaling alone.
template <class Visit>
void visit_scaling_keys(Model const& m, Visit const& visit) {
  visit("model.rope_scaling_factor", &Model::rope_scaling_factor);
  visit("model.rope_low_freq_factor", &Model::rope_low_freq_factor);
  visit("model.rope_high_freq_factor", &Model::rope_high_freq_factor);
  // The scale of queries by their position reads it, too.
  if (m.rope_query_beta == 0.0) visit("model.rope_original_seq_len", &Model::rope_original_seq_len);
  visit("model.rope_beta_fast", &Model::rope_beta_fast);
  visit("model.rope_beta_slow", &Model::rope_beta_slow);
  visit("model.rope_attention_factor", &Model::rope_attention_factor);
  visit("model.rope_truncate", &Model::rope_truncate);
  visit("model.rope_short_factors", &Model::rope_short_factors);
  visit("model.rope_long_factors", &Model::rope_long_factors);
  visit("model.rope_scaling_layers", &Model::rope_scaling_layers);
}

}  // namespace p3d::config
