// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/block_sizes.hpp>

#include <p3d/layout/stages.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::layout {

ContextHeads context_heads(config::Config const& c, int tp_rank) {
  auto const heads = c.model.heads / c.parallel.tp;
  return {.heads = heads,
          .kv_heads = c.model.kv_heads / c.parallel.tp,
          .head_dim = c.model.head_dim(),
          .value_dim = c.model.value_dim(),
          .first_head = heads * tp_rank,
          .scale = c.model.attention_scale(),
          .softcap = c.model.attention_softcap,
          .latent = c.model.mla.key_value_latent()};
}

namespace {

/// Sizes for ranks with at most `most_rows` rows.
MoeSizes moe_sizes(config::Config const& c, std::int64_t most_rows) {
  auto const& m = c.model.moe;
  auto const& p = c.parallel;
  std::int64_t const ranks = p.product({Axis::etp, Axis::ep});
  MoeSizes s;
  s.experts = static_cast<int>(m.experts);
  s.top_k = static_cast<int>(m.top_k);
  s.copies = p.etp;
  s.alone = ranks == 1;
  s.samples = c.batch.micro;
  s.local_experts = m.experts / p.ep;
  s.ffn = m.ffn / p.etp;
  auto const balanced = most_rows * m.top_k * p.etp;
  auto const worst = ranks * most_rows * std::min(m.top_k, s.local_experts);
  auto const wanted = std::ceil(m.buffer_factor * static_cast<double>(balanced));
  s.ranks = static_cast<int>(ranks);
  s.tokens = most_rows;
  s.gathers = ranks > 1 && m.dispatch == config::Dispatch::gather;
  // A rank alone receives nothing: its rows are as many under every routing.
  bool const all = s.alone || s.gathers || wanted >= static_cast<double>(worst);
  s.most_rows = all ? worst : std::max(ranks, static_cast<std::int64_t>(wanted));
  s.balances = m.aux_loss != config::AuxLoss::none;
  s.jitters = m.jitter > 0;
  s.drops = m.capacity_factor > 0;
  s.gates_shared = m.shared_gate && m.shared_ffn > 0;
  return s;
}

}  // namespace

BlockSizes layer_sizes(BlockSizes s, config::Config const& c, std::int64_t layer) {
  if (!c.model.moe.on()) return s;
  bool const experts = c.model.has_experts(layer);
  s.ffn = (experts ? c.model.moe.shared_ffn : c.model.ffn) / c.parallel.tp;
  if (!experts) s.moe = {};
  return s;
}

BlockSizes block_sizes(config::Config const& c, RankPlace rank, bool on_device) {
  std::int64_t const tp = c.parallel.tp;
  auto const longest = context_division(c);
  auto const division = longest.of_length(rank.length > 0 ? rank.length : c.model.seq_len);
  auto const heads = context_heads(c, 0);
  AttentionSizes const attention(division, heads, c.batch.micro);
  BlockSizes s;
  s.tokens = c.batch.micro * division.share_of_place(rank.cp).size();
  s.most_tokens = attention.rows;
  s.qkv_elements = attention.qkv_elements();
  s.lse_elements = attention.lse_elements();
  s.attention = AttentionSizes(longest, heads, c.batch.micro);
  s.sequence = c.parallel.sequence;
  s.tp = c.parallel.tp;
  auto const share = s.sequence ? even_share(s.tokens, c.parallel.tp, rank.tp) : Range{0, s.tokens};
  s.rows = share.size();
  s.first_row = share.begin;
  s.most_rows = s.sequence ? (s.most_tokens + tp - 1) / tp : s.most_tokens;
  s.hidden = c.model.hidden;
  s.heads = heads.heads;
  s.kv_heads = heads.kv_heads;
  s.head_dim = heads.head_dim;
  s.value_dim = heads.values();
  if (c.model.qk_norm == config::QkNorm::head) s.qk_norms = s.heads + s.kv_heads;
  if (c.model.qk_norm == config::QkNorm::full) s.qk_norms = 2, s.qk_sums = tp > 1 ? 2 : 0;
  if (auto const& a = c.model.mla; a.on()) {
    s.mla = {.q_rank = a.q_lora_rank,
             .kv_rank = a.kv_lora_rank,
             .rope_dim = a.qk_rope_head_dim,
             .both = s.heads * a.kv_head_dim()};
  }
  s.ffn = c.model.ffn / tp;
  s.gated = c.model.gated();
  s.layernorm = c.model.norm == config::Norm::layernorm;
  s.norms_before = c.model.norms_before();
  s.norms_after = c.model.norms_after();
  s.vocab_ranks = c.vocabulary_parts();
  s.vocab = padded_shard(c.model.vocab_size, s.vocab_ranks, 0).size();
  s.documents = c.batch.micro * c.model.seq_len;
  s.on_device = on_device;
  if (!c.model.moe.on()) return s;
  s.moe = moe_sizes(c, s.most_rows);
  s.ffn = (c.model.moe_layers() == c.model.layers ? c.model.moe.shared_ffn
                                                  : std::max(c.model.ffn, c.model.moe.shared_ffn)) /
          tp;
  return s;
}

BlockSizes block_sizes_of(config::Config const& c, std::int64_t tokens, bool on_device) {
  auto s = block_sizes(c, {}, on_device);
  s.tokens = s.most_tokens = s.rows = s.most_rows = tokens;
  s.attention = AttentionSizes({.seq_len = tokens}, context_heads(c, 0), 1);
  s.qkv_elements = tokens * s.qkv();
  s.lse_elements = tokens * s.heads;
  s.first_row = 0;
  s.sequence = false;
  if (s.moe.on()) s.moe = moe_sizes(c, tokens);
  return s;
}

}  // namespace p3d::layout
