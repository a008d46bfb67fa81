// SPDX-License-Identifier: Apache-2.0
// Context parallelism: the exchanges around attention. A call has up to three parts. An all-to-all (HeadExchange)
// brings all tokens of a place, with some of the heads, to each of its members. Then blocks of keys come from the other
// places (KeySource), and the result over each block is merged into the result so far. Where latents travel, they come
// in place of keys and values, of which the rank makes those of its heads. Attention sinks, which are no
// keys of any place, come into the merged result. An all-to-all brings the results back.
#include <p3d/parallel/context.hpp>

#include "key_source.hpp"

#include <p3d/kernels/attention_sinks.hpp>

#include <memory>
#include <type_traits>

namespace p3d::parallel {

using kernels::heads_of;
using kernels::Store;

ContextParallel::ContextParallel(comm::Communicator& cp, layout::ContextDivision const& division)
    : division_(division), rank_(cp.rank()) {
  P3D_REQUIRE(cp.size() == division.cp, "the group has the ranks of the division");
  int const place = division.place(rank_), member = division.member(rank_);
  members_ = cp.split(place, member, "context-members");
  ring_ = cp.split(member, place, "context-ring");
}

std::int64_t ContextParallel::sent_bytes() const {
  return members_.accounting().sent.messages + ring_.accounting().sent.messages;
}

double ContextParallel::wait_seconds() const {
  return members_.valid() ? members_.accounting().wait_seconds + ring_.accounting().wait_seconds : 0.0;
}

void ContextParallel::reset_accounting() {
  members_.reset_accounting();
  ring_.reset_accounting();
}

template <class S>
void ContextAttention<S>::attach(ExecSpace const& exec, ContextParallel& cp) {
  exec_ = exec;
  cp_ = &cp;
}

namespace {

/// The first `columns` columns of so many rows.
template <class T>
View2<T> matrix(HeadRows<T> m, std::int64_t rows, std::int64_t columns) {
  return device::columns(View2<T>(m.data, rows, m.stride), 0, columns);
}

}  // namespace

/// A call as this rank sees it: its place, and what it has in attention of heads and tokens.
template <class S>
struct ContextAttention<S>::Work {
  ContextAttention& of;
  Call const& call;
  layout::ContextDivision const& division;
  int place = 0;
  std::int64_t heads, kv_heads, first_head;
  /// Widths of a row: of queries, keys, values and outputs, of keys with values, and of all of qkv.
  std::int64_t query_columns, key_columns, value_columns, out_columns, block_columns, columns;
  std::int64_t travelling_columns;  ///< columns of a row on its way between places: latents, or keys with values
  std::int64_t rows;                ///< rows of the place's tokens, in all samples

  Work(ContextAttention& attention, Call const& c) : of(attention), call(c), division(c.division) {
    P3D_REQUIRE(division.cp == 1 || (of.cp_ && division.cp == of.cp_->division().cp),
                "the sequence is divided over the ranks of the group");
    P3D_REQUIRE(call.samples <= of.samples_ || division.cp == 1, "scratch is for so many samples");
    P3D_REQUIRE(!division.latents || call.latents, "latents that travel are known");
    int const rank = division.cp > 1 ? of.cp_->rank() : 0;
    place = division.place(rank);
    heads = of.heads_.heads / division.all_to_all;
    kv_heads = of.heads_.kv_heads / division.all_to_all;
    first_head = of.heads_.first_head + division.member(rank) * heads;
    query_columns = heads * of.heads_.head_dim;
    key_columns = kv_heads * of.heads_.head_dim;
    value_columns = kv_heads * of.heads_.values();
    out_columns = heads * of.heads_.values();
    block_columns = key_columns + value_columns;
    columns = query_columns + block_columns;
    travelling_columns = division.latents ? of.heads_.latent : block_columns;
    rows = call.samples * division.place_tokens(place).size();
  }

  bool exchanges() const { return division.all_to_all > 1; }
  bool has_sinks() const { return call.sinks.extent(0) > 0; }
  /// A vector with a number for each head of the rank: those of its heads in attention.
  template <class T>
  View1<T> own_heads(View1<T> all) const {
    return View1<T>(all.data() + (first_head - of.heads_.first_head), heads);
  }
  /// True where results over blocks are kept in the type of sums, which is wider.
  bool sums_are_wide() const { return !std::is_same_v<S, A> && division.ring() > 1; }
  template <class T>
  HeadExchange<T> members(View1<T> sent, View1<T> received) const {
    return {of.exec_, of.cp_->members(), division, place, call.samples, sent, received};
  }
  HeadExchange<S> members() const { return members<S>(of.at_.sent, of.at_.received); }
  std::vector<HeadColumns> outputs() const { return {{0, out_columns}}; }
  /// The columns of qkv that the members of a place exchange.
  std::vector<HeadColumns> exchanged() const {
    if (division.latents) return {{0, query_columns}};
    auto const q = of.heads_.query_columns();
    return {{0, query_columns}, {q, key_columns}, {q + of.heads_.key_columns(), value_columns}};
  }
  /// The keys and values of the other places; null where there are none.
  std::unique_ptr<KeySource<S>> other_keys() const {
    if (division.ring() == 1) return nullptr;
    KeyMemory<S> const memory{of.exec_,      of.cp_->ring(),        division, call.samples, travelling_columns,
                              of.at_.blocks, of.at_.block_gradients};
    if (division.gather) return std::make_unique<GatheredKeys<S>>(memory);
    return std::make_unique<RingKeys<S>>(memory);
  }
  /// The description of attention of this place's queries over the keys of place `keys_of`.
  kernels::AttentionShape shape(int keys_of) const {
    kernels::AttentionShape s;
    s.first_sample = call.first_sample;
    s.samples = call.samples;
    s.seq_len = division.seq_len;
    s.queries = division.place_tokens(place);
    s.keys = division.place_tokens(keys_of);
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dim = of.heads_.head_dim;
    s.value_dim = of.heads_.values();
    s.first_head = first_head;
    s.scale = of.heads_.scale;
    s.softcap = of.heads_.softcap;
    s.window = call.window;
    s.documents = call.documents;
    return s;
  }

  /// The heads of the rank in attention, among those of its rank of tp.
  typename TravellingLatents<S>::Heads latent_heads() const { return {first_head - of.heads_.first_head, heads}; }
  std::int64_t rows_of(int other) const { return call.samples * division.place_tokens(other).size(); }
  /// The latents of this place.
  HeadRows<S> latents() const { return {of.at_.latents.data(), of.heads_.latent}; }
  /// The rows that travel from this place to the others.
  HeadRows<S const> sent_rows(HeadRows<S const> own_keys) const {
    if (!division.latents) return own_keys;
    return {latents().data, latents().stride};
  }
  /// Makes keys and values of this rank's heads of the latents of `place_of`.
  void expand(int place_of, HeadRows<S const> from, HeadRows<S> keys) const {
    auto const n = rows_of(place_of);
    call.latents->expand(latent_heads(), matrix(from, n, of.heads_.latent), matrix(keys, n, key_columns),
                         matrix(from_column(keys, key_columns), n, value_columns));
  }
  /// True when some query of this place sees some key of the place: else its latents need no keys.
  bool sees(int keys_of) const {
    auto const queries = division.place_tokens(place), keys = division.place_tokens(keys_of);
    if (queries.size() == 0 || keys.size() == 0 || queries.at(queries.size() - 1) < keys.at(0)) return false;
    return call.window == 0 || keys.at(keys.size() - 1) + call.window > queries.at(0);
  }
  /// The keys and values of a block that has come.
  HeadRows<S const> keys_of(typename KeySource<S>::Block const& block) const {
    if (!division.latents) return block.rows;
    HeadRows<S> const keys{of.at_.expanded.data(), block_columns};
    expand(block.place, block.rows, keys);
    return {keys.data, keys.stride};
  }
  /// The gradients of latents of `place_of` from those of their keys and values.
  void expand_backward(int place_of, HeadRows<S const> from, HeadRows<S const> dkeys, View1<A> dlatents) const {
    auto const n = rows_of(place_of), width = of.heads_.latent;
    call.latents->expand_backward(latent_heads(), matrix(from, n, width), matrix(dkeys, n, key_columns),
                                  matrix(from_column(dkeys, key_columns), n, value_columns),
                                  matrix(HeadRows<A>{dlatents.data(), width}, n, width));
  }
  /// The gradients of a block's latents from those of its keys and values, which are in at_.expanded_gradients. The
  /// keys and values themselves have been read.
  void block_backward(typename KeySource<S>::Block const& block, View1<A> dlatents) const {
    HeadRows<S> dkeys{of.at_.expanded.data(), block_columns};
    if constexpr (std::is_same_v<S, A>)
      dkeys.data = of.at_.expanded_gradients.data();
    else
      kernels::copy_rows<A, S>(of.exec_, rows_of(block.place), block_columns,
                               {of.at_.expanded_gradients.data(), block_columns}, dkeys);
    expand_backward(block.place, block.rows, {dkeys.data, dkeys.stride}, dlatents);
  }
  /// Backward of the latents of this place, from the gradients of its own keys and values and the sum of what other
  /// places have sent: fills call.latents->gradient().
  void own_latents_backward(HeadRows<S const> dkeys, View1<A> from_others) const {
    auto const width = of.heads_.latent;
    auto const d = part(of.at_.latent_gradients, 0, rows * width);
    expand_backward(place, {latents().data, width}, dkeys, d);
    if (from_others.extent(0) > 0) kernels::add<A>(of.exec_, View1<A const>(from_others), d);
    auto const to = heads_of(call.latents->gradient());
    if (!exchanges()) return kernels::copy_rows<A, S>(of.exec_, rows, width, {d.data(), width}, to);
    kernels::copy_rows<A, S>(of.exec_, rows, width, {d.data(), width}, latents());
    members().sum_to_local(width, {latents().data, width}, to);
  }

  /// Forward over the keys of all places, this place's own first.
  template <class O>
  void forward(HeadRows<S const> qkv, HeadRows<O> out, View1<A> lse) const {
    auto const attend = [&](int keys_of, HeadRows<S const> keys, Store store) {
      kernels::attention_forward<S, O>(of.exec_, shape(keys_of), call.dropout, of.scratch_, qkv, keys,
                                       from_column(keys, key_columns), store, out, lse);
    };
    auto const own = from_column(qkv, query_columns);
    auto const others = other_keys();
    if (others) others->start(sent_rows(own));
    attend(place, own, Store::overwrite);
    while (others) {
      auto const block = others->next();
      if (!block) break;
      if (division.latents && !sees(block->place)) continue;
      attend(block->place, keys_of(*block), Store::add);
    }
    if (has_sinks()) kernels::attention_sinks_forward<S, O>(of.exec_, shape(place), own_heads(call.sinks), out, lse);
  }
  /// Backward over the keys of all places, in that order; dkv gets the gradients of this place's keys. Where latents
  /// travel, it gets those of this place's queries alone, and the result is the sum that other places have sent for
  /// latents; empty without other places.
  template <class D>
  View1<A> backward(HeadRows<S const> qkv, HeadRows<S const> dout, View1<A const> lse, View1<A const> delta,
                    HeadRows<D> dq, HeadRows<D> dkv, kernels::WholeOutput<S> const& whole) const {
    auto const attend = [&](int keys_of, HeadRows<S const> keys, Store store_q, HeadRows<D> dkeys) {
      kernels::attention_backward<S, D>(of.exec_, shape(keys_of), call.dropout, of.scratch_, qkv, keys,
                                        from_column(keys, key_columns), dout, lse, delta, store_q, dq, Store::overwrite,
                                        dkeys, from_column(dkeys, key_columns), whole);
    };
    auto const own = from_column(qkv, query_columns);
    attend(place, own, Store::overwrite, dkv);
    if constexpr (std::is_same_v<D, A>) {
      auto const others = other_keys();
      if (!others) return {};
      others->start(sent_rows(own));
      while (auto const block = others->next()) {
        auto const gradient = others->gradient();
        if (!division.latents) {
          attend(block->place, block->rows, Store::add, {gradient.data(), block_columns});
        } else if (sees(block->place)) {
          attend(block->place, keys_of(*block), Store::add, {of.at_.expanded_gradients.data(), block_columns});
          block_backward(*block, gradient);
        } else {
          kernels::fill<A>(of.exec_, gradient, A(0));
        }
        others->send_gradient();
      }
      if (division.latents) return others->sum();
      kernels::add_rows<A>(of.exec_, rows, block_columns, {others->sum().data(), block_columns}, dkv);
    }
    return {};
  }
};

template <class S>
void ContextAttention<S>::exchange(Call const& call, View1<S> qkv) {
  Work const work(*this, call);
  if (work.exchanges())
    work.members().to_place(work.exchanged(), {qkv.data(), heads_.columns()}, {qkv.data(), work.columns});
  if (!call.division.latents) return;
  bring_latents(call);
  work.expand(work.place, {at_.latents.data(), heads_.latent}, {qkv.data() + work.query_columns, work.columns});
}

template <class S>
void ContextAttention<S>::bring_latents(Call const& call) {
  Work const work(*this, call);
  if (!call.division.latents) return;
  auto const width = heads_.latent;
  auto const own = call.samples * call.division.tokens(cp_->rank()).size();
  auto const rows = matrix(work.latents(), own, width);
  call.latents->own(rows);
  if (work.exchanges()) work.members().rows_to_place(width, {rows.data(), width}, work.latents());
}

template <class S>
void ContextAttention<S>::forward(Call const& call, View1<S const> qkv, View2<S> out, View1<A> lse) {
  Work const work(*this, call);
  HeadRows<S const> const in{qkv.data(), work.columns};
  auto result = heads_of(out);
  if (work.exchanges()) result = {at_.place_out.data(), work.out_columns};
  if (work.sums_are_wide()) {
    HeadRows<A> const wide{at_.wide_queries.data(), work.out_columns};
    work.template forward<A>(in, wide, lse);
    kernels::copy_rows<A, S>(exec_, work.rows, work.out_columns, {wide.data, wide.stride}, result);
  } else {
    work.template forward<S>(in, result, lse);
  }
  if (work.exchanges()) work.members().to_local(work.outputs(), {result.data, result.stride}, heads_of(out));
}

template <class S>
void ContextAttention<S>::backward(Call const& call, View1<S const> qkv, View2<S const> out, View1<A const> lse,
                                   View2<S const> dout, View2<S> dqkv) {
  Work const work(*this, call);
  kernels::WholeOutput<S> whole;
  if (call.division.cp == 1) {
    whole = {heads_of(out), at_.delta};
  } else {
    auto local = work.shape(work.place);
    local.heads = heads_.heads;
    local.kv_heads = heads_.kv_heads;
    local.queries = call.division.tokens(cp_->rank());
    local.documents = {};
    kernels::attention_delta<S>(exec_, local, heads_of(out), heads_of(dout), at_.delta);
  }
  HeadRows<S const> const in{qkv.data(), work.columns};
  HeadRows<S const> dy = heads_of(dout);
  HeadRows<S> result = heads_of(dqkv);
  View1<A const> delta = at_.delta;
  if (work.exchanges()) {
    HeadRows<S> const there{at_.place_out.data(), work.out_columns};
    work.members().to_place(work.outputs(), dy, there);
    work.template members<A>(at_.sent_delta, at_.received_delta)
        .statistics_to_place(heads_.heads, at_.delta.data(), at_.place_delta.data());
    dy = {there.data, there.stride};
    delta = at_.place_delta;
    result = {at_.place_qkv.data(), work.columns};
  }
  auto const keys = from_column(result, work.query_columns);
  View1<A> from_others;
  if (work.sums_are_wide()) {
    auto const q = work.query_columns, kv = work.block_columns;
    from_others =
        work.template backward<A>(in, dy, lse, delta, {at_.wide_queries.data(), q}, {at_.wide_keys.data(), kv}, whole);
    kernels::copy_rows<A, S>(exec_, work.rows, q, {at_.wide_queries.data(), q}, result);
    kernels::copy_rows<A, S>(exec_, work.rows, kv, {at_.wide_keys.data(), kv}, keys);
  } else {
    from_others = work.template backward<S>(in, dy, lse, delta, result, keys, whole);
  }
  if (call.division.latents) work.own_latents_backward({keys.data, keys.stride}, from_others);
  if (work.exchanges()) work.members().to_local(work.exchanged(), {result.data, result.stride}, heads_of(dqkv));
  // A library's attention keeps its delta to itself.
  if (work.has_sinks() && call.division.cp == 1)
    kernels::attention_delta<S>(exec_, work.shape(work.place), whole.out, heads_of(dout), at_.delta);
}

template <class S>
template <class G>
void ContextAttention<S>::sinks_backward(Call const& call, View1<A const> lse, View1<G> grad) {
  Work const work(*this, call);
  if (!work.has_sinks()) return;
  View1<A const> const delta = work.exchanges() ? at_.place_delta : at_.delta;
  kernels::attention_sinks_backward<S, G>(exec_, work.shape(work.place), work.own_heads(call.sinks), lse, delta,
                                          work.own_heads(grad));
}

#define P3D_INSTANTIATE(S) template class ContextAttention<S>;
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(P)                                                 \
  template void ContextAttention<P::Storage>::sinks_backward<P::Gradient>( \
      Call const&, View1<kernels::Acc<P::Storage> const>, View1<P::Gradient>);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
