// SPDX-License-Identifier: Apache-2.0
#pragma once
// The buffers of a transformer layer: what forward leaves for backward, what of it is kept in an activation slot and
// what is discarded and remade, and scratch.

#include <p3d/config/config.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/model/parameters.hpp>
#include <p3d/parallel/context.hpp>

#include <cstdint>
#include <memory>

namespace p3d::model {

/// Sizes of one rank's part of a layer. N = tokens of a microbatch; n = those of this rank between the GEMMs: its rows
/// under sequence parallelism (parallel/rows.hpp), else N.
struct BlockSizes {
  std::int64_t tokens = 0;       ///< N = micro * seq_len, or this rank's part of these under context parallelism
  std::int64_t most_tokens = 0;  ///< the largest N of any rank: what is taken for them, so that all ranks take the same
  std::int64_t rows = 0;         ///< n
  std::int64_t first_row = 0;    ///< of those
  std::int64_t most_rows = 0;    ///< as most_tokens
  bool sequence = false;         ///< whether n is less than N
  std::int64_t hidden = 0;
  std::int64_t heads = 0;     ///< local query heads
  std::int64_t kv_heads = 0;  ///< local key/value heads
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;  ///< local
  bool gated = false;    ///< SwiGLU: the up projection is (gate | up), 2 ffn wide
  bool layernorm = true;
  std::int64_t qkv_elements = 0;  ///< of BlockActivations::qkv: N qkv, or more where an all-to-all exchanges it
  std::int64_t lse_elements = 0;  ///< of BlockActivations::lse
  std::int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t up() const { return gated ? 2 * ffn : ffn; }
};
/// Where a rank stands, and how long samples are: for its rows and tokens alone.
struct RankPlace {
  int tp = 0, cp = 0;
  std::int64_t length = 0;  ///< 0: model.seq_len
};
BlockSizes block_sizes(config::Config const& config, RankPlace rank = {});
/// The heads of a rank of tp, as attention is told of them.
parallel::ContextHeads context_heads(config::Config const& config, int tp_rank);
/// The same for `tokens` of them, whole on every rank: no sequence and no context parallelism.
BlockSizes block_sizes_of(config::Config const& config, std::int64_t tokens);

/// A norm's output and statistics.
template <class P>
struct NormActivations {
  View2<typename P::Storage> y;         ///< [n, hidden]
  View1<typename P::Accumulate> mean;   ///< [n], layer norm only
  View1<typename P::Accumulate> scale;  ///< [n], 1 / standard deviation or 1 / root mean square
};

/// Written by forward for backward. The layer's input and output are the stage's. An empty view: not in this set.
template <class P>
struct BlockActivations {
  NormActivations<P> norm1;
  View2<typename P::Storage> qkv;     ///< [N, qkv], after the rotary embedding; then as attention keeps it
  View2<typename P::Storage> heads;   ///< attention output [N, heads head_dim]
  View1<typename P::Accumulate> lse;  ///< as attention keeps it
  View2<typename P::Storage> mid;     ///< [n, hidden]
  NormActivations<P> norm2;
  View2<typename P::Storage> up;   ///< [N, up]
  View2<typename P::Storage> act;  ///< [N, ffn]
};

/// Some of the buffers of BlockActivations.
struct BlockParts {
  bool norm_outputs = false;  ///< y of both norms
  bool statistics = false;    ///< of both norms
  bool qkv = false, heads = false, lse = false, mid = false, up = false, act = false;

  static constexpr BlockParts all() { return {true, true, true, true, true, true, true, true}; }
  constexpr BlockParts operator|(BlockParts const& b) const {
    return {norm_outputs || b.norm_outputs,
            statistics || b.statistics,
            qkv || b.qkv,
            heads || b.heads,
            lse || b.lse,
            mid || b.mid,
            up || b.up,
            act || b.act};
  }
  constexpr BlockParts without(BlockParts const& b) const {
    return {norm_outputs && !b.norm_outputs,
            statistics && !b.statistics,
            qkv && !b.qkv,
            heads && !b.heads,
            lse && !b.lse,
            mid && !b.mid,
            up && !b.up,
            act && !b.act};
  }
  bool operator==(BlockParts const&) const = default;
};

/// What forward discards of a layer: it lies in scratch, and backward remakes it there.
BlockParts discarded_parts(layout::StageRecompute const& stage, int layer);
/// What a slot keeps of it: the others.
BlockParts kept_parts(layout::StageRecompute const& stage, int layer);
/// Of the discarded ones those that the weight part of a split backward reads, or finds gradients in: all but the
/// statistics and the log-sum-exp. The input part remakes them into a set that lives until then.
BlockParts rebuilt_parts(layout::StageRecompute const& stage, int layer);

/// Scratch that all layers of all stages of a rank share.
template <class P>
struct BlockScratch {
  View2<typename P::Storage> branch;    ///< [N, hidden]
  View2<typename P::Storage> dnorm;     ///< [N, hidden]; under sequence parallelism branch, which is read by then
  View2<typename P::Storage> gathered;  ///< [N, hidden], input of a column-parallel linear; only there
  View2<typename P::Storage> dact;      ///< [N, ffn]
  View2<typename P::Storage> dup;       ///< [N, up]
  View2<typename P::Storage> dheads;    ///< [N, heads head_dim]
  View2<typename P::Storage> dqkv;      ///< [N, qkv]
  std::shared_ptr<parallel::ContextAttention<typename P::Storage>> attention;
};

/// [N, columns], of memory for the largest N.
template <class T, class Source>
View2<T> take_tokens(Source& source, BlockSizes const& s, std::int64_t columns) {
  return View2<T>(source.template take<T>(s.most_tokens, columns).data(), s.tokens, columns);
}
/// [N, qkv], of memory for s.qkv_elements.
template <class P, class Source>
View2<typename P::Storage> take_qkv(Source& source, BlockSizes const& s) {
  return View2<typename P::Storage>(source.template take<typename P::Storage>(s.qkv_elements).data(), s.tokens,
                                    s.qkv());
}

/// [n, hidden].
template <class P, class Source>
View2<typename P::Storage> take_rows(Source& source, BlockSizes const& s) {
  auto const most = source.template take<typename P::Storage>(s.most_rows, s.hidden);
  return View2<typename P::Storage>(most.data(), s.rows, s.hidden);
}
/// Takes the views from an arena, or from a counter with the same take() to learn the size.
template <class P, class Source>
NormActivations<P> take_norm(Source& source, BlockSizes const& s, bool output = true, bool statistics = true) {
  using Sum = typename P::Accumulate;
  NormActivations<P> n;
  auto const each = [&] { return View1<Sum>(source.template take<Sum>(s.most_rows).data(), s.rows); };
  if (output) n.y = take_rows<P>(source, s);
  if (statistics && s.layernorm) n.mean = each();
  if (statistics) n.scale = each();
  return n;
}
template <class P, class Source>
BlockActivations<P> take_block(Source& source, BlockSizes const& s, BlockParts const& parts = BlockParts::all()) {
  using S = typename P::Storage;
  BlockActivations<P> a;
  a.norm1 = take_norm<P>(source, s, parts.norm_outputs, parts.statistics);
  if (parts.qkv) a.qkv = take_qkv<P>(source, s);
  if (parts.heads) a.heads = take_tokens<S>(source, s, s.heads * s.head_dim);
  if (parts.lse) a.lse = source.template take<typename P::Accumulate>(s.lse_elements);
  if (parts.mid) a.mid = take_rows<P>(source, s);
  a.norm2 = take_norm<P>(source, s, parts.norm_outputs, parts.statistics);
  if (parts.up) a.up = take_tokens<S>(source, s, s.up());
  if (parts.act) a.act = take_tokens<S>(source, s, s.ffn);
  return a;
}
/// All but `attention`.
template <class P, class Source>
BlockScratch<P> take_scratch(Source& source, BlockSizes const& s) {
  using S = typename P::Storage;
  BlockScratch<P> b;
  b.branch = take_tokens<S>(source, s, s.hidden);
  b.dnorm = s.sequence ? b.branch : take_tokens<S>(source, s, s.hidden);
  if (s.sequence) b.gathered = take_tokens<S>(source, s, s.hidden);
  b.dact = take_tokens<S>(source, s, s.ffn);
  b.dup = take_tokens<S>(source, s, s.up());
  b.dheads = take_tokens<S>(source, s, s.heads * s.head_dim);
  b.dqkv = take_qkv<P>(source, s);
  return b;
}

/// Puts views of `from` where `a` has none.
template <class P>
void fill_in(BlockActivations<P>& a, BlockActivations<P> const& from) {
  auto const fill = [](auto& view, auto const& other) {
    if (view.data() == nullptr) view = other;
  };
  fill(a.norm1.y, from.norm1.y);
  fill(a.norm1.mean, from.norm1.mean);
  fill(a.norm1.scale, from.norm1.scale);
  fill(a.qkv, from.qkv);
  fill(a.heads, from.heads);
  fill(a.lse, from.lse);
  fill(a.mid, from.mid);
  fill(a.norm2.y, from.norm2.y);
  fill(a.norm2.mean, from.norm2.mean);
  fill(a.norm2.scale, from.norm2.scale);
  fill(a.up, from.up);
  fill(a.act, from.act);
}

}  // namespace p3d::model
