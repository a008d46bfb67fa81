// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sizes of one rank's part of a layer, from which the shapes of all its buffers follow (buffers.hpp).

#include <p3d/config/config.hpp>
#include <p3d/layout/context.hpp>

#include <cstdint>

namespace p3d::layout {

/// Sizes of one rank's part of the routed experts of a layer; a dense layer has the defaults.
struct MoeSizes {
  int experts = 0, top_k = 0;
  int copies = 1;            ///< ranks that each have a part of an expert (etp): each gets all its rows
  bool alone = true;         ///< no other rank has experts for this rank's tokens
  bool gathers = false;      ///< every rank of the group gets all of its tokens
  int ranks = 1;             ///< the size of the group that shares the experts
  std::int64_t tokens = 0;   ///< the most tokens of any rank of the group
  std::int64_t samples = 0;  ///< samples that the rank's rows may belong to
  std::int64_t local_experts = 0;
  std::int64_t ffn = 0;        ///< width of one expert on this rank
  std::int64_t most_rows = 0;  ///< rows that the rank's experts take at once
  bool balances = false;       ///< a loss of balance wants its factors kept
  bool jitters = false;
  bool drops = false;         ///< experts have a capacity
  bool gates_shared = false;  ///< the output of shared experts has a gate
  bool on() const { return experts > 0; }
  /// Rows travel to ranks that have their experts, and back.
  bool sends_rows() const { return on() && !alone && !gathers; }
  /// Tokens that the rank's experts choose their rows from.
  std::int64_t seen_tokens() const { return gathers ? ranks * tokens : tokens; }
};

/// Sizes of latent attention (model.mla) on one rank; without it all are 0.
struct MlaSizes {
  std::int64_t q_rank = 0, kv_rank = 0;  ///< numbers of a token's latents
  std::int64_t rope_dim = 0;             ///< numbers of a key that rotate and that all heads share
  std::int64_t both = 0;                 ///< columns of keys without positions and of values, of the rank's heads
  /// Columns of the latents, in this order: of queries, of keys and values, the rotating part of keys.
  std::int64_t latent() const { return q_rank + kv_rank + rope_dim; }
  /// Columns of the latents that have norms, and the number of these norms.
  std::int64_t normed() const { return q_rank + kv_rank; }
  std::int64_t norms() const { return (q_rank > 0 ? 1 : 0) + (kv_rank > 0 ? 1 : 0); }
};

/// Sizes of one rank's part of a layer. N = tokens of a microbatch; n = those of this rank between the GEMMs: its rows
/// under sequence parallelism (parallel/rows.hpp), else N.
struct BlockSizes {
  std::int64_t tokens = 0;       ///< N = micro * seq_len, or this rank's part of these under context parallelism
  std::int64_t most_tokens = 0;  ///< the largest N of any rank; memory is taken for it, so that all ranks take the same
  std::int64_t rows = 0;         ///< n, the rows of this rank
  std::int64_t first_row = 0;    ///< the first of the n rows, among the N
  std::int64_t most_rows = 0;    ///< the largest n of any rank
  bool sequence = false;         ///< true: n is less than N
  int tp = 1;                    ///< ranks of tensor parallelism
  std::int64_t hidden = 0;
  std::int64_t heads = 0;      ///< local query heads
  std::int64_t kv_heads = 0;   ///< local key/value heads
  std::int64_t head_dim = 0;   ///< width of a head of queries and keys
  std::int64_t value_dim = 0;  ///< width of a head of values, and of what attention makes of it
  std::int64_t ffn = 0;        ///< local width of the MLP; in a layer with experts the width of shared ones, or 0
  bool gated = false;          ///< SwiGLU, GeGLU: the up projection is (gate | up), 2 ffn wide
  bool layernorm = true;
  bool norms_before = true;       ///< there is a norm in front of each sub-layer
  bool norms_after = false;       ///< there is a norm behind each sub-layer
  std::int64_t qkv_elements = 0;  ///< a layer's qkv: N qkv(), or more where an all-to-all exchanges it
  std::int64_t lse_elements = 0;  ///< a layer's log-sum-exp
  AttentionSizes attention;       ///< sizes of the scratch of attention, for the longest samples
  MlaSizes mla;
  MoeSizes moe;
  std::int64_t vocab = 0;      ///< rows of the vocabulary that this rank has
  std::int64_t qk_norms = 0;   ///< norms of queries and keys in a row (kernels::QkNormShape); 0: none
  std::int64_t qk_sums = 0;    ///< norms of queries and keys in a row that need a sum over tp
  int vocab_ranks = 1;         ///< ranks over which the vocabulary is divided
  std::int64_t documents = 0;  ///< tokens of whole samples, each with its document
  bool on_device = false;      ///< true: kernels have their form for devices
  std::int64_t qkv() const { return (heads + kv_heads) * head_dim + kv_heads * value_dim; }
  /// Columns of queries and keys before their norm.
  std::int64_t qk() const { return qk_norms > 0 ? (heads + kv_heads) * head_dim : 0; }
  /// Columns of a norm's output in front of a sub-layer, and of a branch before the norm behind one; 0: no such norm.
  std::int64_t normed() const { return norms_before ? hidden : 0; }
  std::int64_t branch() const { return norms_after ? hidden : 0; }
  std::int64_t up() const { return gated ? 2 * ffn : ffn; }
  std::int64_t expert_up() const { return gated ? 2 * moe.ffn : moe.ffn; }
};

/// The rank whose rows and tokens are meant, and the length of its samples.
struct RankPlace {
  int tp = 0, cp = 0;
  std::int64_t length = 0;  ///< 0: model.seq_len
};
/// Sizes of the buffers that all layers share: the largest of any layer. `on_device` as in BlockSizes.
BlockSizes block_sizes(config::Config const& config, RankPlace rank = {}, bool on_device = false);
/// Sizes of one layer, from those that all share.
BlockSizes layer_sizes(BlockSizes of_all, config::Config const& config, std::int64_t layer);
/// Sizes for `tokens` tokens that are whole on every rank: no sequence and no context parallelism.
BlockSizes block_sizes_of(config::Config const& config, std::int64_t tokens, bool on_device = false);
/// The heads of a rank of tp, in the form that attention takes.
ContextHeads context_heads(config::Config const& config, int tp_rank);

}  // namespace p3d::layout
