// SPDX-License-Identifier: Apache-2.0
// The keys of [model.mla]: multi-head latent attention.

#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/section.hpp"

namespace p3d::config {

namespace {

/// Gets the struct of the section, which lies inside another one: no pointer to member reaches it.
struct MlaOfModel {
  Mla& operator()(Config& config) const { return config.model.mla; }
  Mla const& operator()(Config const& config) const { return config.model.mla; }
};

}  // namespace

void add_mla(std::vector<Key>& table) {
  Section<Mla, MlaOfModel> s(table, "model.mla", {});
  s.integer("kv_lora_rank", &Mla::kv_lora_rank, {0, limits::hidden},
            "multi-head latent attention (arXiv 2405.04434): numbers of the latent that keys and values of all heads "
            "come from; 0: grouped-query attention");
  s.integer("q_lora_rank", &Mla::q_lora_rank, {0, limits::hidden},
            "numbers of the latent that queries come from; 0: they come from the residual stream");
  s.integer("qk_nope_head_dim", &Mla::qk_nope_head_dim, {0, limits::hidden},
            "dimensions of a head of queries and keys that do not rotate");
  s.integer("qk_rope_head_dim", &Mla::qk_rope_head_dim, {0, limits::hidden},
            "dimensions of a head of queries and keys that rotate, behind the others; all heads share those of keys");
  s.integer("v_head_dim", &Mla::v_head_dim, {0, limits::hidden}, "width of a head of values", "qk_nope_head_dim");
  s.number("norm_eps", &Mla::norm_eps, {.max = 1.0, .min_open = true},
           "added to the mean square in the norms of the latents");
}

}  // namespace p3d::config
