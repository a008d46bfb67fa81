// SPDX-License-Identifier: Apache-2.0
#pragma once
// The buffers of a transformer layer: what forward leaves for backward, what of it is kept in an activation slot and
// what is discarded and remade, and scratch.

#include <p3d/config/config.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/kernels/routing.hpp>
#include <p3d/model/parameters.hpp>
#include <p3d/model/route_log.hpp>
#include <p3d/parallel/context.hpp>
#include <p3d/parallel/experts.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace p3d::model {

/// Sizes of one rank's part of the routed experts of a layer; without experts: of a dense one.
struct MoeSizes {
  int experts = 0, top_k = 0;
  int copies = 1;            ///< ranks that each have a part of an expert (etp): each gets all its rows
  bool alone = true;         ///< no other rank has experts for this rank's tokens
  bool gathers = false;      ///< every rank of the group gets all of its tokens
  int ranks = 1;             ///< of the group that shares the experts
  std::int64_t tokens = 0;   ///< at most of any of these ranks
  std::int64_t samples = 0;  ///< that the rank's rows may belong to
  std::int64_t local_experts = 0;
  std::int64_t ffn = 0;        ///< of one expert, on this rank
  std::int64_t most_rows = 0;  ///< that the rank's experts take at once
  bool balances = false;       ///< a loss of balance wants its factors kept
  bool jitters = false;
  bool drops = false;         ///< experts have a capacity
  bool gates_shared = false;  ///< the output of shared experts has a gate
  bool on() const { return experts > 0; }
  /// Tokens that the rank's experts choose their rows from.
  std::int64_t seen_tokens() const { return gathers ? ranks * tokens : tokens; }
};

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
  std::int64_t ffn = 0;  ///< local; of a layer with experts that of shared ones, or 0
  bool gated = false;    ///< SwiGLU: the up projection is (gate | up), 2 ffn wide
  bool layernorm = true;
  std::int64_t qkv_elements = 0;  ///< of BlockActivations::qkv: N qkv, or more where an all-to-all exchanges it
  std::int64_t lse_elements = 0;  ///< of BlockActivations::lse
  MoeSizes moe;
  std::int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t up() const { return gated ? 2 * ffn : ffn; }
};
/// Where a rank stands, and how long samples are: for its rows and tokens alone.
struct RankPlace {
  int tp = 0, cp = 0;
  std::int64_t length = 0;  ///< 0: model.seq_len
};
/// Of what all layers share: the largest of any.
BlockSizes block_sizes(config::Config const& config, RankPlace rank = {});
/// Of one layer, from those that all share.
BlockSizes layer_sizes(BlockSizes of_all, config::Config const& config, std::int64_t layer);
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

/// Of routed experts, for backward. n: the rank's rows; R: most_rows; A: Accumulate.
template <class P>
struct MoeActivations {
  using A = typename P::Accumulate;
  View2<A> logits, scores;  ///< [n, experts]
  View1<A> lse, total;      ///< [n]
  View2<int> choice;        ///< [n, top_k]
  View2<A> gates;           ///< [n, top_k]
  View1<int> slots;         ///< [n top_k]: the order (expert, token, choice); gathered: of the tokens of all ranks
  View2<int> place;         ///< [n, top_k]: and back
  View2<A> balance;         ///< [samples, experts]: see kernels::route_backward
  View2<typename P::Storage> x, up;  ///< [R, hidden], [R, up]: of the rank's experts, in their order
  View1<A> row_gates;                ///< [R]
  View1<A> shared_gates;             ///< [N]: of shared experts, or empty
  /// Who sends what, from forward on. x, up and row_gates are those of its last pass.
  std::shared_ptr<std::optional<layout::ExpertDispatch>> dispatch;
  std::shared_ptr<std::vector<std::int64_t>> gathered;  ///< tokens of each rank, where all get all
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
  MoeActivations<P> moe;           ///< of a layer with experts
};

/// Some of the buffers of BlockActivations.
struct BlockParts {
  bool norm_outputs = false;  ///< y of both norms
  bool statistics = false;    ///< of both norms
  bool qkv = false, heads = false, lse = false, mid = false, up = false, act = false;
  bool experts = false;  ///< all of the routed experts

  static constexpr BlockParts all() { return {true, true, true, true, true, true, true, true, true}; }
  constexpr BlockParts operator|(BlockParts const& b) const {
    return {norm_outputs || b.norm_outputs,
            statistics || b.statistics,
            qkv || b.qkv,
            heads || b.heads,
            lse || b.lse,
            mid || b.mid,
            up || b.up,
            act || b.act,
            experts || b.experts};
  }
  constexpr BlockParts without(BlockParts const& b) const {
    return {norm_outputs && !b.norm_outputs,
            statistics && !b.statistics,
            qkv && !b.qkv,
            heads && !b.heads,
            lse && !b.lse,
            mid && !b.mid,
            up && !b.up,
            act && !b.act,
            experts && !b.experts};
  }
  bool operator==(BlockParts const&) const = default;
};

/// What forward discards of a layer: it lies in scratch, and backward remakes it there.
BlockParts discarded_parts(layout::StageRecompute const& stage, int layer);
/// What a slot keeps of it: the others.
BlockParts kept_parts(layout::StageRecompute const& stage, int layer);
/// Of the discarded ones those that the weight part of a split backward reads, or finds gradients in: all but the
/// statistics, the log-sum-exp and what belongs to routed experts, whose weight gradients come with the input part. The
/// input part remakes them into a set that lives until then.
BlockParts rebuilt_parts(layout::StageRecompute const& stage, int layer);

/// Factors of the losses that balance experts, in a global batch: loss scale / samples, loss scale / tokens.
struct BalanceScales {
  double sample = 0.0, token = 0.0;
};

/// With whom the ranks of a stage exchange inside its layers: null or empty where they do not.
struct StageExchanges {
  parallel::ContextParallel* context = nullptr;
  parallel::ExpertParallel* experts = nullptr;
  parallel::SampleRanks sample_ranks{};
};

/// Scratch of routed experts. "Own" rows are those of the rank's tokens, `received` those of other ranks' too.
template <class P>
struct MoeScratch {
  using S = typename P::Storage;
  using A = typename P::Accumulate;
  View1<int> offsets, workspace;  ///< of the order of slots
  View1<int> order, back;         ///< [R]: the experts' order of received rows, and the way back
  View2<int> places;              ///< [n, top_k copies]
  View2<S> own, received;         ///< [n top_k, hidden], [R, hidden]; where rows travel
  View2<S> returned;              ///< [copies n top_k, hidden]
  View2<S> rows;                  ///< [R, hidden]: outputs of experts, or the gradients of these
  View2<S> act, dact, dup;        ///< [R, ffn], [R, ffn], [R, up]
  View1<A> own_gates, received_gates, returned_gates, row_gates;
  /// Where all ranks get all tokens, G of them: received and returned are [G, hidden], too, and their gates [G top_k].
  View2<int> choices;          ///< [G, top_k]: of the rank's experts, counted from its first one
  View2<S> partial;            ///< [G, hidden]: what the rank's experts add to each token
  View1<A> partial_gates;      ///< [G top_k]
  View2<A> d_gates, d_logits;  ///< [n, top_k], [n, experts]
  View2<S> narrow_logits;      ///< [n, experts]: the gradient in 16 bits
  View1<A> bias;               ///< [experts], where weights have 16 bits
  View2<S> jittered;           ///< [n, hidden]
  View2<int> position, kept;   ///< [n, top_k]: where experts have a capacity
  View2<std::int64_t> counts;  ///< [samples, experts]: there, and for a loss of balance
  View2<S> dx;                 ///< [n, hidden]
  View1<A> d_shared;           ///< [N]: of shared_gates
  View1<S> narrow_shared;      ///< [N]: the same in 16 bits
  parallel::ExpertParallel* experts = nullptr;
  parallel::SampleRanks sample_ranks;
  BalanceScales scales;
  RouteTap* routes = nullptr;  ///< for tests
};

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
  MoeScratch<P> moe;
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
/// [n, columns] of a type, of memory for the largest n.
template <class T, class Source>
View2<T> take_own(Source& source, BlockSizes const& s, std::int64_t columns) {
  return View2<T>(source.template take<T>(s.most_rows, columns).data(), s.rows, columns);
}
template <class P, class Source>
MoeActivations<P> take_moe(Source& source, BlockSizes const& s) {
  using A = typename P::Accumulate;
  using S = typename P::Storage;
  auto const& m = s.moe;
  MoeActivations<P> a;
  auto const each = [&] { return View1<A>(source.template take<A>(s.most_rows).data(), s.rows); };
  a.logits = take_own<A>(source, s, m.experts);
  a.scores = take_own<A>(source, s, m.experts);
  a.lse = each();
  a.total = each();
  a.choice = take_own<int>(source, s, m.top_k);
  a.gates = take_own<A>(source, s, m.top_k);
  auto const slots = source.template take<int>(m.seen_tokens() * m.top_k);
  a.slots = m.gathers ? slots : View1<int>(slots.data(), s.rows * m.top_k);
  a.place = m.gathers ? source.template take<int>(m.seen_tokens(), m.top_k) : take_own<int>(source, s, m.top_k);
  if (m.balances) a.balance = source.template take<A>(m.samples, m.experts);
  a.x = source.template take<S>(m.most_rows, s.hidden);
  a.up = source.template take<S>(m.most_rows, s.gated ? 2 * m.ffn : m.ffn);
  a.row_gates = source.template take<A>(m.most_rows);
  if (m.gates_shared) a.shared_gates = View1<A>(source.template take<A>(s.most_tokens).data(), s.tokens);
  a.dispatch = std::make_shared<std::optional<layout::ExpertDispatch>>();
  a.gathered = std::make_shared<std::vector<std::int64_t>>();
  return a;
}
template <class P, class Source>
MoeScratch<P> take_moe_scratch(Source& source, BlockSizes const& s) {
  using A = typename P::Accumulate;
  using S = typename P::Storage;
  auto const& m = s.moe;
  MoeScratch<P> t;
  auto const slots = s.most_rows * m.top_k;
  t.offsets = source.template take<int>(m.experts + 1);
  t.workspace = source.template take<int>(kernels::sort_workspace(m.seen_tokens(), m.experts));
  if (m.gathers) {
    t.choices = source.template take<int>(m.seen_tokens(), m.top_k);
    for (auto* rows : {&t.received, &t.partial, &t.returned})
      *rows = source.template take<S>(m.seen_tokens(), s.hidden);
    for (auto* gates : {&t.received_gates, &t.partial_gates, &t.returned_gates})
      *gates = source.template take<A>(m.seen_tokens() * m.top_k);
  }
  if (m.copies > 1 && !m.gathers) t.places = take_own<int>(source, s, std::int64_t{m.top_k} * m.copies);
  if (!m.alone && !m.gathers) {
    t.order = source.template take<int>(m.most_rows);
    t.back = source.template take<int>(m.most_rows);
    t.own = source.template take<S>(slots, s.hidden);
    t.received = source.template take<S>(m.most_rows, s.hidden);
    t.returned = source.template take<S>(m.copies * slots, s.hidden);
    t.received_gates = source.template take<A>(m.most_rows);
    t.returned_gates = source.template take<A>(m.copies * slots);
    t.own_gates = source.template take<A>(slots);
  }
  t.rows = source.template take<S>(m.most_rows, s.hidden);
  t.act = source.template take<S>(m.most_rows, m.ffn);
  t.dact = source.template take<S>(m.most_rows, m.ffn);
  t.dup = source.template take<S>(m.most_rows, s.gated ? 2 * m.ffn : m.ffn);
  t.row_gates = source.template take<A>(m.most_rows);
  t.d_gates = take_own<A>(source, s, m.top_k);
  t.d_logits = take_own<A>(source, s, m.experts);
  if constexpr (!std::is_same_v<S, A>) {
    t.narrow_logits = take_own<S>(source, s, m.experts);
    t.bias = source.template take<A>(m.experts);
  }
  if (m.gates_shared) {
    t.d_shared = View1<A>(source.template take<A>(s.most_tokens).data(), s.tokens);
    if constexpr (!std::is_same_v<S, A>)
      t.narrow_shared = View1<S>(source.template take<S>(s.most_tokens).data(), s.tokens);
  }
  if (m.drops) {
    t.position = take_own<int>(source, s, m.top_k);
    t.kept = take_own<int>(source, s, m.top_k);
  }
  if (m.drops || m.balances) t.counts = source.template take<std::int64_t>(m.samples, m.experts);
  if (m.jitters) t.jittered = take_own<S>(source, s, s.hidden);
  t.dx = take_own<S>(source, s, s.hidden);
  return t;
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
  if (parts.experts && s.moe.on()) a.moe = take_moe<P>(source, s);
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
  if (s.moe.on()) b.moe = take_moe_scratch<P>(source, s);
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
  if (a.moe.choice.data() == nullptr) a.moe = from.moe;
}

}  // namespace p3d::model
