// SPDX-License-Identifier: Apache-2.0
#include "cases.hpp"

#include <p3d/config/config.hpp>
#include <p3d/layout/axes.hpp>

#include <fmt/format.h>

#include <set>

namespace p3d::invariance {

std::vector<Model> models(int ranks) {
  // (heads, kv heads, hidden, ffn, global batch) by the number of ranks: all divisors of `ranks` divide heads, kv heads
  // of gpt2, ffn and batch, except that llama's kv heads and the base heads leave out tp = 8 and more.
  int heads = 12, llama_kv = 6, head_dim = 8, global = 12;
  if (ranks == 5 || ranks == 7 || ranks == 8) {
    heads = ranks;
    llama_kv = ranks == 8 ? 4 : ranks;
    global = 2 * ranks;
  }
  std::vector<Model> out;
  for (bool llama : {false, true}) {
    for (bool tied : {true, false}) {
      out.push_back(
          {fmt::format("{}-{}", llama ? "llama" : "gpt2", tied ? "tied" : "untied"),
           {llama ? "model.preset=llama-tiny" : "model.preset=gpt2-tiny", "model.vocab_size=257", "model.seq_len=16",
            fmt::format("model.heads={}", heads), fmt::format("model.kv_heads={}", llama ? llama_kv : heads),
            fmt::format("model.hidden={}", heads * head_dim), fmt::format("model.ffn={}", heads * head_dim * 3),
            fmt::format("model.tied_embeddings={}", tied), "batch.micro=1", fmt::format("batch.global={}", global)},
           heads,
           llama ? llama_kv : heads,
           heads * head_dim * 3,
           global});
    }
  }
  // Heads that are wider than hidden / heads with norms and sinks, biases of q, k and v alone, layers that do not
  // rotate, and an activation function with learned slopes.
  auto qwen2 = out[2];
  qwen2.name = "qwen2-tied";
  qwen2.overrides.insert(qwen2.overrides.end(), {fmt::format("model.head_dim={}", head_dim + 2), "model.qkv_bias=true",
                                                 "model.rope_layers=[1, 0]", "model.qk_norm=head",
                                                 "model.attention_sinks=true", "model.activation=xielu"});
  out.push_back(std::move(qwen2));
  // Latent attention, whose keys and values come from one short vector of a token, in sequences that are long for it.
  auto latent = out[3];
  latent.name = "latent-untied";
  latent.kv_heads = heads;
  latent.overrides.insert(
      latent.overrides.end(),
      {fmt::format("model.kv_heads={}", heads), "model.mla.kv_lora_rank=12", "model.mla.q_lora_rank=10",
       "model.mla.qk_nope_head_dim=6", "model.mla.qk_rope_head_dim=4", "model.mla.v_head_dim=8",
       "model.rope_pairs=neighbours", "model.activation=swiglu_clamped", "model.swiglu_limit=0.3",
       "model.attention_sinks=true", "model.rope_scaling=longrope", "model.rope_original_seq_len=10",
       "model.rope_short_factors=[1.0, 1.0]", "model.rope_long_factors=[1.5, 3.0]", "model.rope_scaling_factor=1.6"});
  out.push_back(std::move(latent));
  // Where the head is another matrix, every rank of tp may have the whole embedding.
  for (auto* model : {&out[1], &out.back()}) model->overrides.emplace_back("parallel.embedding=replicated");
  // Norms behind sub-layers, and on both sides with pairs of neighbours, multipliers and caps that are reached.
  out[3].overrides.insert(out[3].overrides.end(), {"model.qk_norm=full", "model.norm_placement=post"});  // llama-untied
  out[2].overrides.insert(
      out[2].overrides.end(),
      {"model.norm_placement=sandwich", "model.norm_offset=1", "model.activation=geglu", "model.rope_fraction=0.5",
       "model.rope_pairs=neighbours", "model.embedding_multiplier=3", "model.attention_multiplier=0.4",
       "model.residual_multiplier=0.5", "model.logits_scaling=1.5", "model.attention_softcap=0.5",
       "model.logits_softcap=3"});  // llama-tied
  return out;
}

bool allowed(Model const& model, Layout const& layout) {
  return model.heads % layout.tp == 0 && model.kv_heads % layout.tp == 0 && model.ffn % layout.tp == 0 &&
         model.global % layout.dp == 0;
}

int num_triples(int ranks) {
  int count = 0;
  for (int dp = 1; dp <= ranks; ++dp)
    for (int tp = 1; tp <= ranks; ++tp)
      for (int pp = 1; pp <= ranks; ++pp) count += dp * tp * pp == ranks ? 1 : 0;
  return count;
}

std::vector<Layout> layouts(int ranks, int turn) {
  std::vector<Layout> out;
  static constexpr char const* orders[] = {"tp-pp-dp", "tp-dp-pp", "pp-tp-dp", "pp-dp-tp", "dp-tp-pp", "dp-pp-tp"};
  int triple = 0;
  for (int dp = 1; dp <= ranks; ++dp) {
    for (int tp = 1; dp * tp <= ranks; ++tp) {
      if (ranks % (dp * tp) != 0) continue;
      int const pp = ranks / (dp * tp);
      std::set<std::string> meshes;  // orders that differ only in axes of size 1 make the same mesh
      std::vector<Layout> here;
      for (std::string const order : orders) {
        auto const axes = layout::parse_order(order);
        layout::RankGrid const grid({.tp = tp, .pp = pp, .dp = dp}, axes);
        std::string mesh;
        for (int r = 0; r < ranks; ++r) {
          auto const c = grid.coordinates(r);
          mesh += fmt::format("{},{},{};", c.dp, c.tp, c.pp);
        }
        if (!meshes.insert(mesh).second) continue;
        for (char const* schedule : {"gpipe", "1f1b"}) {
          for (bool const sequence : {false, true}) {
            if ((pp == 1 && std::string(schedule) == "gpipe") || (sequence && tp == 1)) continue;
            here.push_back({fmt::format("dp{} tp{} pp{} {} {}{}", dp, tp, pp, order, schedule, sequence ? " sp" : ""),
                            {fmt::format("parallel.dp={}", dp), fmt::format("parallel.tp={}", tp),
                             fmt::format("parallel.pp={}", pp), fmt::format("parallel.sequence={}", sequence),
                             "parallel.order=" + order, fmt::format("pipeline.schedule={}", schedule)},
                            dp,
                            tp,
                            pp});
          }
        }
      }
      ++triple;
      if (turn >= 0) {
        if (triple % num_models == turn)
          out.push_back(here[(static_cast<std::size_t>(triple) * 2654435761U >> 8) % here.size()]);
      } else {
        out.insert(out.end(), here.begin(), here.end());
      }
    }
  }
  return out;
}

}  // namespace p3d::invariance
