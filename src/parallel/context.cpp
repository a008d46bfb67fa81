// SPDX-License-Identifier: Apache-2.0
// Context parallelism: the exchanges around attention. A call has up to three parts. The all-to-all brings all tokens
// of a place, with some of the heads, to each of its members. Then blocks of keys come from the other places, by a ring
// or by an all-gather, and the result over each block is merged into the result so far. An all-to-all brings the
// results back.
//
// The ring: in step t a rank works on the keys of the place t before its own, while those of the next step arrive. In
// backward the gradient of a block of keys travels the same way: each rank adds its part and sends the sum on, until it
// arrives at the place that owns the keys. The all-gather form sends all parts directly and adds them in the order of
// the ring, so both forms give the same bits.
#include <p3d/parallel/context.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <vector>

namespace p3d::parallel {

using kernels::HeadRows;
using kernels::heads_of;
using kernels::Store;

namespace {

/// The tags of messages.
enum Tag { keys_tag, gradients_tag, exchange_tag, delta_tag };

/// Numbers [begin, begin + count) of a scratch array.
template <class T>
View1<T> part(View1<T> all, std::int64_t begin, std::int64_t count) {
  P3D_REQUIRE(begin + count <= static_cast<std::int64_t>(all.extent(0)), "scratch of attention has room");
  return View1<T>(all.data() + begin, count);
}
/// A vector as a matrix of one row, as messages take it.
template <class T>
View2<T> as_row(View1<T> v) {
  return View2<T>(v.data(), 1, v.extent(0));
}
template <class T>
HeadRows<T> from_column(HeadRows<T> m, std::int64_t column) {
  return {m.data + column, m.stride};
}
template <class T>
HeadRows<T> from_row(HeadRows<T> m, std::int64_t row) {
  return {m.data + row * m.stride, m.stride};
}
template <class T>
HeadRows<T const> as_const(HeadRows<T> m) {
  return {m.data, m.stride};
}

}  // namespace

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

/// The part of a call that belongs to this rank: its place and member number, heads and tokens.
template <class S>
struct ContextAttention<S>::Place {
  int number, member;
  std::int64_t heads, kv_heads, first_head;  ///< heads of this rank in attention
  std::int64_t query_columns, key_columns;
  std::int64_t tokens, local_tokens;  ///< tokens of a sample: those of the place, those of the rank
  /// Elements of a row of qkv in attention.
  std::int64_t stride() const { return query_columns + 2 * key_columns; }
};

/// The columns of a row of local tokens that go to each member, in pieces that follow each other at the place.
template <class S>
struct ContextAttention<S>::Columns {
  struct Piece {
    std::int64_t first, width;  ///< the columns of member m begin at first + m * width
  };
  std::vector<Piece> pieces;
  std::int64_t width() const {
    std::int64_t sum = 0;
    for (auto const& p : pieces) sum += p.width;
    return sum;
  }
};

template <class S>
typename ContextAttention<S>::Place ContextAttention<S>::place_of(Call const& call) const {
  auto const& d = call.division;
  int const rank = cp_ ? cp_->rank() : 0;
  P3D_REQUIRE(d.cp == 1 || (cp_ && d.cp == cp_->division().cp), "the sequence is divided over the ranks of the group");
  P3D_REQUIRE(call.samples <= samples_ || d.cp == 1, "scratch is for so many samples");
  Place p{};
  p.number = d.cp > 1 ? d.place(rank) : 0;
  p.member = d.cp > 1 ? d.member(rank) : 0;
  p.heads = heads_.heads / d.all_to_all;
  p.kv_heads = heads_.kv_heads / d.all_to_all;
  p.first_head = heads_.first_head + p.member * p.heads;
  p.query_columns = p.heads * heads_.head_dim;
  p.key_columns = p.kv_heads * heads_.head_dim;
  p.tokens = d.place_tokens(p.number).size();
  p.local_tokens = d.cp > 1 ? d.share_of_place(rank).size() : p.tokens;
  return p;
}

template <class S>
kernels::AttentionShape ContextAttention<S>::shape_of(Call const& call, Place const& place, int keys_of) const {
  kernels::AttentionShape s;
  s.first_sample = call.first_sample;
  s.samples = call.samples;
  s.seq_len = call.division.seq_len;
  s.queries = call.division.place_tokens(place.number);
  s.keys = call.division.place_tokens(keys_of);
  s.heads = place.heads;
  s.kv_heads = place.kv_heads;
  s.head_dim = heads_.head_dim;
  s.first_head = place.first_head;
  s.scale = heads_.scale;
  s.window = call.window;
  s.documents = call.documents;
  return s;
}

// All-to-all ----------------------------------------------------------------------------------------------------------

template <class S>
template <class T>
void ContextAttention<S>::to_place(Call const& call, Place const& place, Columns const& columns,
                                   HeadRows<T const> local, HeadRows<T> there, View1<T> sent, View1<T> received) {
  auto& members = cp_->members();
  auto const width = columns.width(), mine = call.samples * place.local_tokens;
  std::vector<comm::Request> requests;
  std::int64_t next = 0;
  auto const begin_of = [&](int m) { return call.division.share_of_place(place.number * members.size() + m); };
  auto const put = [&](int m, HeadRows<T const> from, std::int64_t tokens) {
    for (std::int64_t s = 0; s < call.samples; ++s)
      kernels::copy_rows<T, T>(exec_, tokens, width, from_row(from, s * tokens),
                               from_row(there, s * place.tokens + begin_of(m).begin));
  };
  std::vector<HeadRows<T const>> arrived(static_cast<std::size_t>(members.size()));
  for (int m = 0; m < members.size(); ++m) {
    if (m == place.member) continue;
    auto const count = call.samples * begin_of(m).size() * width;
    auto const room = part(received, next, count);
    next += count;
    arrived[static_cast<std::size_t>(m)] = {room.data(), width};
    requests.push_back(collectives::start_recv<T>(exec_, members, as_row(room), m, exchange_tag));
  }
  for (int m = 0; m < members.size(); ++m) {
    auto const packed = part(sent, m * mine * width, mine * width);
    std::int64_t column = 0;
    for (auto const& piece : columns.pieces) {
      kernels::copy_rows<T, T>(exec_, mine, piece.width, from_column(local, piece.first + m * piece.width),
                               HeadRows<T>{packed.data() + column, width});
      column += piece.width;
    }
    if (m == place.member) {
      arrived[static_cast<std::size_t>(m)] = {packed.data(), width};
    } else {
      requests.push_back(collectives::start_send<T>(exec_, members, View2<T const>(as_row(packed)), m, exchange_tag));
    }
  }
  comm::wait_all(requests);
  for (int m = 0; m < members.size(); ++m) put(m, arrived[static_cast<std::size_t>(m)], begin_of(m).size());
}

template <class S>
template <class T>
void ContextAttention<S>::to_local(Call const& call, Place const& place, Columns const& columns,
                                   HeadRows<T const> there, HeadRows<T> local, View1<T> sent, View1<T> received) {
  auto& members = cp_->members();
  auto const width = columns.width(), mine = call.samples * place.local_tokens;
  std::vector<comm::Request> requests;
  std::int64_t next = 0;
  std::vector<HeadRows<T const>> arrived(static_cast<std::size_t>(members.size()));
  for (int m = 0; m < members.size(); ++m) {
    if (m == place.member) continue;
    auto const room = part(received, m * mine * width, mine * width);
    arrived[static_cast<std::size_t>(m)] = {room.data(), width};
    requests.push_back(collectives::start_recv<T>(exec_, members, as_row(room), m, exchange_tag));
  }
  for (int m = 0; m < members.size(); ++m) {
    auto const share = call.division.share_of_place(place.number * members.size() + m);
    auto const packed = part(sent, next, call.samples * share.size() * width);
    next += call.samples * share.size() * width;
    HeadRows<T> const to{packed.data(), width};
    for (std::int64_t s = 0; s < call.samples; ++s)
      kernels::copy_rows<T, T>(exec_, share.size(), width, from_row(there, s * place.tokens + share.begin),
                               from_row(to, s * share.size()));
    if (m == place.member) {
      arrived[static_cast<std::size_t>(m)] = as_const(to);
    } else {
      requests.push_back(collectives::start_send<T>(exec_, members, View2<T const>(as_row(packed)), m, exchange_tag));
    }
  }
  comm::wait_all(requests);
  for (int m = 0; m < members.size(); ++m) {
    std::int64_t column = 0;
    for (auto const& piece : columns.pieces) {
      kernels::copy_rows<T, T>(exec_, mine, piece.width, from_column(arrived[static_cast<std::size_t>(m)], column),
                               from_column(local, piece.first + m * piece.width));
      column += piece.width;
    }
  }
}

template <class S>
void ContextAttention<S>::delta_to_place(Call const& call, Place const& place, View1<A const> local, View1<A> there) {
  auto& members = cp_->members();
  auto const mine = call.samples * place.heads * place.local_tokens;
  auto const rows_of = [&](int m) { return call.division.share_of_place(place.number * members.size() + m); };
  std::vector<comm::Request> requests;
  std::int64_t next = 0;
  std::vector<A const*> arrived(static_cast<std::size_t>(members.size()));
  for (int m = 0; m < members.size(); ++m) {
    if (m == place.member) continue;
    auto const room = part(at_.received_delta, next, call.samples * place.heads * rows_of(m).size());
    next += static_cast<std::int64_t>(room.extent(0));
    arrived[static_cast<std::size_t>(m)] = room.data();
    requests.push_back(collectives::start_recv<A>(exec_, members, as_row(room), m, delta_tag));
  }
  for (int m = 0; m < members.size(); ++m) {
    auto const packed = part(at_.sent_delta, m * mine, mine);
    for (std::int64_t s = 0; s < call.samples; ++s)
      kernels::copy_rows<A, A>(
          exec_, place.heads, place.local_tokens,
          {local.data() + (s * heads_.heads + m * place.heads) * place.local_tokens, place.local_tokens},
          {packed.data() + s * place.heads * place.local_tokens, place.local_tokens});
    if (m == place.member) {
      arrived[static_cast<std::size_t>(m)] = packed.data();
    } else {
      requests.push_back(collectives::start_send<A>(exec_, members, View2<A const>(as_row(packed)), m, delta_tag));
    }
  }
  comm::wait_all(requests);
  for (int m = 0; m < members.size(); ++m)
    for (std::int64_t s = 0; s < call.samples; ++s) {
      auto const share = rows_of(m);
      kernels::copy_rows<A, A>(exec_, place.heads, share.size(),
                               {arrived[static_cast<std::size_t>(m)] + s * place.heads * share.size(), share.size()},
                               {there.data() + s * place.heads * place.tokens + share.begin, place.tokens});
    }
}

// Keys and values of the other places ---------------------------------------------------------------------------------

template <class S>
void ContextAttention<S>::pack_keys(Place const& place, HeadRows<S const> qkv, View1<S> packed) {
  auto const width = 2 * place.key_columns;
  kernels::copy_rows<S, S>(exec_, static_cast<std::int64_t>(packed.extent(0)) / width, width,
                           from_column(qkv, place.query_columns), {packed.data(), width});
}

template <class S>
template <class O>
void ContextAttention<S>::forward_blocks(Call const& call, Place const& place, HeadRows<S const> qkv, HeadRows<O> out,
                                         View1<A> lse) {
  auto const& d = call.division;
  auto const width = 2 * place.key_columns;
  auto const run = [&](int keys_of, HeadRows<S const> keys, Store store) {
    kernels::attention_forward<S, O>(exec_, shape_of(call, place, keys_of), call.dropout, scratch_, qkv, keys,
                                     from_column(keys, place.key_columns), store, out, lse);
  };
  int const ring = d.ring(), me = place.number;
  if (ring == 1) return run(0, from_column(qkv, place.query_columns), Store::overwrite);
  auto& group = cp_->ring();
  auto const elements = [&](int p) { return call.samples * d.place_tokens(p).size() * width; };
  auto const most = call.samples * d.most_place_tokens() * width;
  auto const block = [&](int slot, int p) { return part(at_.blocks, slot * most, elements(p)); };
  if (d.gather) {
    std::vector<comm::Request> requests;
    for (int p = 0; p < ring; ++p)
      if (p != me) requests.push_back(collectives::start_recv<S>(exec_, group, as_row(block(p, p)), p, keys_tag));
    pack_keys(place, qkv, block(me, me));
    for (int p = 0; p < ring; ++p)
      if (p != me)
        requests.push_back(
            collectives::start_send<S>(exec_, group, View2<S const>(as_row(block(me, me))), p, keys_tag));
    run(me, from_column(qkv, place.query_columns), Store::overwrite);
    comm::wait_all(requests);
    for (int t = 1; t < ring; ++t) {
      int const p = (me - t + ring) % ring;
      run(p, {block(p, p).data(), width}, Store::add);
    }
    return;
  }
  int const next = (me + 1) % ring, before = (me - 1 + ring) % ring;
  pack_keys(place, qkv, block(0, me));
  for (int t = 0; t < ring; ++t) {
    int const p = (me - t + ring) % ring;
    std::vector<comm::Request> requests;
    if (t + 1 < ring) {
      int const coming = (me - t - 1 + ring) % ring;
      requests.push_back(
          collectives::start_recv<S>(exec_, group, as_row(block((t + 1) % 2, coming)), before, keys_tag));
      requests.push_back(
          collectives::start_send<S>(exec_, group, View2<S const>(as_row(block(t % 2, p))), next, keys_tag));
    }
    run(p, {block(t % 2, p).data(), width}, t == 0 ? Store::overwrite : Store::add);
    comm::wait_all(requests);
  }
}

template <class S>
template <class D>
void ContextAttention<S>::backward_blocks(Call const& call, Place const& place, HeadRows<S const> qkv,
                                          HeadRows<S const> dout, View1<A const> lse, View1<A const> delta,
                                          HeadRows<D> dq, HeadRows<D> dkv, kernels::WholeOutput<S> const& whole) {
  auto const& d = call.division;
  auto const width = 2 * place.key_columns;
  auto const run = [&]<class Keys>(int keys_of, HeadRows<S const> keys, Store store_q, HeadRows<Keys> dkeys) {
    kernels::attention_backward<S, Keys>(exec_, shape_of(call, place, keys_of), call.dropout, scratch_, qkv, keys,
                                         from_column(keys, place.key_columns), dout, lse, delta, store_q,
                                         HeadRows<Keys>(dq), Store::overwrite, dkeys,
                                         from_column(dkeys, place.key_columns), whole);
  };
  int const ring = d.ring(), me = place.number;
  run(me, from_column(qkv, place.query_columns), Store::overwrite, dkv);
  if constexpr (std::is_same_v<D, A>) {
    if (ring == 1) return;
    auto& group = cp_->ring();
    auto const elements = [&](int p) { return call.samples * d.place_tokens(p).size() * width; };
    auto const most = call.samples * d.most_place_tokens() * width;
    auto const block = [&](int slot, int p) { return part(at_.blocks, slot * most, elements(p)); };
    auto const gradient = [&](int slot, int p) { return part(at_.block_gradients, slot * most, elements(p)); };
    auto const add_home = [&](View1<A> sum) {  // to the gradients of the own keys and values
      kernels::add_rows<A>(exec_, call.samples * place.tokens, width, {sum.data(), width}, dkv);
    };
    if (d.gather) {
      std::vector<comm::Request> keys, sums;
      for (int p = 0; p < ring; ++p)
        if (p != me) keys.push_back(collectives::start_recv<S>(exec_, group, as_row(block(p, p)), p, keys_tag));
      pack_keys(place, qkv, block(me, me));
      for (int p = 0; p < ring; ++p)
        if (p != me)
          keys.push_back(collectives::start_send<S>(exec_, group, View2<S const>(as_row(block(me, me))), p, keys_tag));
      for (int t = 1; t < ring; ++t)  // from the rank that computes it in its step t
        sums.push_back(
            collectives::start_recv<A>(exec_, group, as_row(gradient(t - 1, me)), (me + t) % ring, gradients_tag));
      comm::wait_all(keys);
      for (int t = 1; t < ring; ++t) {
        int const p = (me - t + ring) % ring;
        auto const own = gradient(ring - 1 + t - 1, p);
        run(p, {block(p, p).data(), width}, Store::add, HeadRows<A>{own.data(), width});
        sums.push_back(collectives::start_send<A>(exec_, group, View2<A const>(as_row(own)), p, gradients_tag));
      }
      comm::wait_all(sums);
      for (int t = 1; t < ring; ++t) {  // as a ring does: each part is added to the next one's, the sum to the own keys
        if (t > 1) kernels::add<A>(exec_, View1<A const>(gradient(t - 2, me)), gradient(t - 1, me));
      }
      return add_home(gradient(ring - 2, me));
    }
    int const next = (me + 1) % ring, before = (me - 1 + ring) % ring;
    pack_keys(place, qkv, block(0, me));
    comm::Request sending;
    for (int t = 0; t < ring; ++t) {
      int const p = (me - t + ring) % ring;
      std::vector<comm::Request> keys;
      if (t + 1 < ring) {
        int const coming = (me - t - 1 + ring) % ring;
        keys.push_back(collectives::start_recv<S>(exec_, group, as_row(block((t + 1) % 2, coming)), before, keys_tag));
        keys.push_back(
            collectives::start_send<S>(exec_, group, View2<S const>(as_row(block(t % 2, p))), next, keys_tag));
      }
      if (t > 0) {
        comm::Request coming;
        auto const sum = gradient(2, p);  // sum over the ranks before, on its way to the rank that owns the block
        if (t > 1) coming = collectives::start_recv<A>(exec_, group, as_row(sum), before, gradients_tag);
        auto const own = gradient(t % 2, p);
        run(p, {block(t % 2, p).data(), width}, Store::add, HeadRows<A>{own.data(), width});
        if (t > 1) {
          coming.wait();
          kernels::add<A>(exec_, View1<A const>(sum), own);
        }
        sending.wait();
        sending = collectives::start_send<A>(exec_, group, View2<A const>(as_row(own)), next, gradients_tag);
      }
      comm::wait_all(keys);
    }
    auto const home = gradient(2, me);
    collectives::start_recv<A>(exec_, group, as_row(home), before, gradients_tag).wait();
    sending.wait();
    add_home(home);
  } else {
    P3D_REQUIRE(ring == 1, "sums over several blocks of keys are of the type of sums");
  }
}

// The calls -----------------------------------------------------------------------------------------------------------

template <class S>
void ContextAttention<S>::exchange(Call const& call, View1<S> qkv) {
  if (call.division.all_to_all == 1) return;
  auto const place = place_of(call);
  Columns const columns{{{0, place.query_columns},
                         {heads_.query_columns(), place.key_columns},
                         {heads_.query_columns() + heads_.key_columns(), place.key_columns}}};
  to_place<S>(call, place, columns, {qkv.data(), heads_.columns()}, {qkv.data(), place.stride()}, at_.sent,
              at_.received);
}

template <class S>
void ContextAttention<S>::forward(Call const& call, View1<S const> qkv, View2<S> out, View1<A> lse) {
  auto const place = place_of(call);
  bool const exchanged = call.division.all_to_all > 1;
  HeadRows<S const> const in{qkv.data(), place.stride()};
  HeadRows<S> const result = exchanged ? HeadRows<S>{at_.place_queries.data(), place.query_columns} : heads_of(out);
  if constexpr (std::is_same_v<S, A>) {
    forward_blocks<S>(call, place, in, result, lse);
  } else if (call.division.ring() == 1) {
    forward_blocks<S>(call, place, in, result, lse);
  } else {
    HeadRows<A> const wide{at_.wide_queries.data(), place.query_columns};
    forward_blocks<A>(call, place, in, wide, lse);
    kernels::copy_rows<A, S>(exec_, call.samples * place.tokens, place.query_columns, as_const(wide), result);
  }
  if (exchanged)
    to_local<S>(call, place, {{{0, place.query_columns}}}, as_const(result), heads_of(out), at_.sent, at_.received);
}

template <class S>
void ContextAttention<S>::backward(Call const& call, View1<S const> qkv, View2<S const> out, View1<A const> lse,
                                   View2<S const> dout, View2<S> dqkv) {
  auto const place = place_of(call);
  bool const exchanged = call.division.all_to_all > 1;
  kernels::WholeOutput<S> whole;
  if (call.division.cp == 1) {
    whole = {heads_of(out), at_.delta};
  } else {
    auto local = shape_of(call, place, place.number);
    local.heads = heads_.heads;
    local.kv_heads = heads_.kv_heads;
    local.queries = call.division.tokens(cp_->rank());
    local.documents = {};
    kernels::attention_delta<S>(exec_, local, heads_of(out), heads_of(dout), at_.delta);
  }
  HeadRows<S const> const in{qkv.data(), place.stride()};
  HeadRows<S const> dy = heads_of(dout);
  HeadRows<S> result = heads_of(dqkv);
  View1<A const> delta = at_.delta;
  if (exchanged) {
    HeadRows<S> const there{at_.place_queries.data(), place.query_columns};
    to_place<S>(call, place, {{{0, place.query_columns}}}, dy, there, at_.sent, at_.received);
    delta_to_place(call, place, at_.delta, at_.place_delta);
    dy = as_const(there);
    delta = at_.place_delta;
    result = {at_.place_qkv.data(), place.stride()};
  }
  if constexpr (std::is_same_v<S, A>) {
    backward_blocks<S>(call, place, in, dy, lse, delta, result, from_column(result, place.query_columns), whole);
  } else if (call.division.ring() == 1) {
    backward_blocks<S>(call, place, in, dy, lse, delta, result, from_column(result, place.query_columns), whole);
  } else {
    auto const rows = call.samples * place.tokens;
    HeadRows<A> const queries{at_.wide_queries.data(), place.query_columns},
        keys{at_.wide_keys.data(), 2 * place.key_columns};
    backward_blocks<A>(call, place, in, dy, lse, delta, queries, keys);
    kernels::copy_rows<A, S>(exec_, rows, place.query_columns, as_const(queries), result);
    kernels::copy_rows<A, S>(exec_, rows, 2 * place.key_columns, as_const(keys),
                             from_column(result, place.query_columns));
  }
  if (!exchanged) return;
  Columns const columns{{{0, place.query_columns},
                         {heads_.query_columns(), place.key_columns},
                         {heads_.query_columns() + heads_.key_columns(), place.key_columns}}};
  to_local<S>(call, place, columns, as_const(result), heads_of(dqkv), at_.sent, at_.received);
}

#define P3D_INSTANTIATE(S) template class ContextAttention<S>;
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
