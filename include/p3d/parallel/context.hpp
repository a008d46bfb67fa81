// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over sequences whose tokens are divided over cp (layout/context.hpp): a ring of keys and values (Liu et
// al., arXiv 2310.01889), an all-gather of them, an all-to-all of tokens for heads (Jacobs et al., arXiv 2309.14509),
// or an all-to-all among neighbours and a ring over their groups (Fang and Zhao, arXiv 2405.07719). Results over blocks
// of keys merge by their log-sum-exp in the type of sums. Blocks are taken in one order, so bits do not depend on when
// messages come. Dropout follows from the global numbers of sample, head, query and key.
//
// A "place" is a group of ranks (members) that exchange heads by the all-to-all and so have the same tokens in
// attention; places form the ring. Example: cp = 4 with all_to_all = 2 has 2 places of 2 members. Each member has half
// of the heads, for all tokens of its place, and passes keys and values to the same member of the other place.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/layout/context.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace p3d::parallel {

using device::ExecSpace;
using device::View1;
using device::View2;

/// The context-parallel group of this rank. A default one is a group of one rank, without messages.
class ContextParallel {
public:
  ContextParallel() = default;
  /// Makes the group of the ranks of `cp`, in their order. Collective.
  ContextParallel(comm::Communicator& cp, layout::ContextDivision const& division);

  layout::ContextDivision const& division() const { return division_; }
  int rank() const { return rank_; }
  /// The ranks of this rank's place.
  comm::Communicator& members() { return members_; }
  /// The ranks with this rank's member number, one in each place.
  comm::Communicator& ring() { return ring_; }
  /// Bytes that this rank has sent in exchanges since the last reset.
  std::int64_t sent_bytes() const;
  /// Seconds that this rank has waited for messages since the last reset.
  double wait_seconds() const;
  /// Sets sent_bytes() and wait_seconds() to zero.
  void reset_accounting();

private:
  layout::ContextDivision division_;
  int rank_ = 0;
  comm::Communicator members_, ring_;
};

/// The heads of one rank of tp.
struct ContextHeads {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t first_head = 0;  ///< global number of the first query head
  double scale = 1.0;           ///< 1 / sqrt(head_dim)
  /// Columns of queries in a row of qkv.
  std::int64_t query_columns() const { return heads * head_dim; }
  std::int64_t key_columns() const { return kv_heads * head_dim; }  ///< columns of keys, and as many of values
  std::int64_t columns() const { return query_columns() + 2 * key_columns(); }
};

/// Attention of one rank, for one layer after the other. It has scratch memory that all layers share.
///
/// The arrays that layers keep for backward (`qkv`, `lse`) are in the form that attention works on: after an all-to-all
/// they have all tokens of the place and some of the heads. Traffic is that of layout::context_traffic, with the
/// gradients of keys and values in the type of sums; backward of an all-to-all sends besides one number of that type
/// for each query and head (delta).
template <class S>
class ContextAttention {
public:
  using A = kernels::Acc<S>;
  /// The elements of a layer's qkv for a microbatch of `micro` samples: the same on every rank.
  static std::int64_t qkv_elements(layout::ContextDivision const& division, ContextHeads const& heads,
                                   std::int64_t micro);
  /// The elements of a layer's lse for a microbatch of `micro` samples: the same on every rank.
  static std::int64_t lse_elements(layout::ContextDivision const& division, ContextHeads const& heads,
                                   std::int64_t micro);

  /// Takes the scratch memory from an arena, or from a counter with the same take(): the same bytes on every rank.
  template <class Source>
  static ContextAttention take(Source& source, layout::ContextDivision const& division, ContextHeads const& heads,
                               std::int64_t micro);
  /// Gives it the group to exchange with, which must outlive this object. Without a group it exchanges with nobody.
  void attach(ExecSpace const& exec, ContextParallel& cp);

  /// One microbatch of one layer. Its division may have shorter samples than the scratch memory was taken for, but no
  /// longer ones.
  struct Call {
    layout::ContextDivision division;
    std::int64_t first_sample = 0, samples = 0;
    /// Tokens that a query sees, itself included; 0: all before it.
    std::int64_t window = 0;
    View1<int const> documents{};  ///< [samples, seq_len]: first token of each token's document; empty: token 0
    kernels::Dropout dropout{};
  };
  /// The all-to-all of forward, in place: qkv of the rank's tokens [rows, columns()] becomes what forward and backward
  /// take. Without an all-to-all nothing is done.
  void exchange(Call const& call, View1<S> qkv);
  /// out [rows, query_columns()] of the rank's tokens, and lse, from the exchanged qkv.
  void forward(Call const& call, View1<S const> qkv, View2<S> out, View1<A> lse);
  /// Overwrites dqkv [rows, columns()] of the rank's tokens with the gradient.
  void backward(Call const& call, View1<S const> qkv, View2<S const> out, View1<A const> lse, View2<S const> dout,
                View2<S> dqkv);

private:
  struct Sizes;
  struct Place;
  struct Columns;
  /// The bytes of scratch memory that one call of attention works in.
  static std::int64_t scratch_bytes(layout::ContextDivision const& division, ContextHeads const& heads,
                                    std::int64_t micro);
  Place place_of(Call const& call) const;
  /// The description of attention of this place's queries over the keys of place `keys_of`.
  kernels::AttentionShape shape_of(Call const& call, Place const& place, int keys_of) const;
  /// The all-to-all from the rank's tokens with all heads (`local`) to the place's tokens with some heads (`there`).
  template <class T>
  void to_place(Call const& call, Place const& place, Columns const& columns, kernels::HeadRows<T const> local,
                kernels::HeadRows<T> there, View1<T> sent, View1<T> received);
  /// The all-to-all back, from the place's tokens with some heads to the rank's tokens with all heads.
  template <class T>
  void to_local(Call const& call, Place const& place, Columns const& columns, kernels::HeadRows<T const> there,
                kernels::HeadRows<T> local, View1<T> sent, View1<T> received);
  /// The all-to-all of delta, from the rank's tokens with all heads to the place's tokens with some heads.
  void delta_to_place(Call const& call, Place const& place, View1<A const> local, View1<A> there);
  /// Copies the keys and values of this rank's place into rows of their own: keys, then values.
  void pack_keys(Place const& place, kernels::HeadRows<S const> qkv, View1<S> packed);
  /// Forward over the keys of all places, in the order of the ring: this place's own first.
  template <class O>
  void forward_blocks(Call const& call, Place const& place, kernels::HeadRows<S const> qkv, kernels::HeadRows<O> out,
                      View1<A> lse);
  /// Backward over the keys of all places, in the order of the ring; dkv gets the gradients of this place's keys.
  template <class D>
  void backward_blocks(Call const& call, Place const& place, kernels::HeadRows<S const> qkv,
                       kernels::HeadRows<S const> dout, View1<A const> lse, View1<A const> delta,
                       kernels::HeadRows<D> dq, kernels::HeadRows<D> dkv, kernels::WholeOutput<S> const& whole = {});

  layout::ContextDivision division_;
  ContextHeads heads_;
  std::int64_t micro_ = 0;
  ExecSpace exec_{};
  ContextParallel* cp_ = nullptr;
  View1<A> delta_;
  kernels::AttentionScratch scratch_;
  // Memory for a ring or an all-gather.
  View1<S> blocks_;                    ///< keys and values of two places, or of all
  View1<A> block_gradients_;           ///< gradients of three blocks, or of two for each other place
  View1<A> wide_queries_, wide_keys_;  ///< sums of results that have 16 bits
  // Memory for an all-to-all.
  View1<S> sent_, received_, place_queries_, place_qkv_;
  View1<A> sent_delta_, received_delta_, place_delta_;
};

/// The sizes that the scratch memory depends on.
template <class S>
struct ContextAttention<S>::Sizes {
  std::int64_t rows, place_rows;  ///< the most of any rank
  std::int64_t heads, kv_heads;   ///< heads of a rank after an all-to-all
  int ring, all_to_all;
  bool gather;
  Sizes(layout::ContextDivision const& d, ContextHeads const& h, std::int64_t micro)
      : rows(micro * d.most_tokens()),
        place_rows(micro * d.most_place_tokens()),
        heads(h.heads / d.all_to_all),
        kv_heads(h.kv_heads / d.all_to_all),
        ring(d.ring()),
        all_to_all(d.all_to_all),
        gather(d.gather) {}
};

template <class S>
std::int64_t ContextAttention<S>::qkv_elements(layout::ContextDivision const& d, ContextHeads const& h,
                                               std::int64_t micro) {
  Sizes const s(d, h, micro);
  return std::max(s.rows * h.columns(), s.place_rows * h.columns() / s.all_to_all);
}
template <class S>
std::int64_t ContextAttention<S>::lse_elements(layout::ContextDivision const& d, ContextHeads const& h,
                                               std::int64_t micro) {
  Sizes const s(d, h, micro);
  return std::max(s.rows * h.heads, s.place_rows * s.heads);
}

template <class S>
template <class Source>
ContextAttention<S> ContextAttention<S>::take(Source& source, layout::ContextDivision const& division,
                                              ContextHeads const& heads, std::int64_t micro) {
  ContextAttention a;
  a.division_ = division;
  a.heads_ = heads;
  a.micro_ = micro;
  Sizes const s(division, heads, micro);
  auto const dim = heads.head_dim;
  a.delta_ = source.template take<A>(s.rows * heads.heads);
  auto const bytes = scratch_bytes(division, heads, micro);
  a.scratch_ = {source.template take<std::byte>(bytes).data(), bytes};
  if (s.ring > 1) {
    auto const block = s.place_rows * 2 * s.kv_heads * dim;
    a.blocks_ = source.template take<S>((s.gather ? s.ring : 2) * block);
    a.block_gradients_ = source.template take<A>((s.gather ? 2 * (s.ring - 1) : 3) * block);
    if constexpr (!std::is_same_v<S, A>) {
      a.wide_queries_ = source.template take<A>(s.place_rows * s.heads * dim);
      a.wide_keys_ = source.template take<A>(block);
    }
  }
  if (s.all_to_all > 1) {
    auto const exchanged = qkv_elements(division, heads, micro);
    a.sent_ = source.template take<S>(exchanged);
    a.received_ = source.template take<S>(exchanged);
    a.place_queries_ = source.template take<S>(s.place_rows * s.heads * dim);
    a.place_qkv_ = source.template take<S>(exchanged);
    a.sent_delta_ = source.template take<A>(lse_elements(division, heads, micro));
    a.received_delta_ = source.template take<A>(lse_elements(division, heads, micro));
    a.place_delta_ = source.template take<A>(s.place_rows * s.heads);
  }
  return a;
}

}  // namespace p3d::parallel
