// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over sequences whose tokens are divided over cp (layout/context.hpp): a ring of keys and values (Liu et
// al., arXiv 2310.01889), an all-gather of them, an all-to-all of tokens for heads (Jacobs et al., arXiv 2309.14509),
// or an all-to-all among neighbours and a ring over their groups (Fang and Zhao, arXiv 2405.07719). Results over
// blocks of keys merge by their log-sum-exp in the type of sums; blocks are taken in one order, so bits do not depend
// on when messages come. Dropout follows from global numbers of sample, head, query and key.

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

/// The context-parallel group of this rank; as made by default a group of one, without messages.
class ContextParallel {
public:
  ContextParallel() = default;
  /// Of the ranks of `cp`, in their order. Collective.
  ContextParallel(comm::Communicator& cp, layout::ContextDivision const& division);

  layout::ContextDivision const& division() const { return division_; }
  int rank() const { return rank_; }
  /// The ranks of this one's place, and those with its number in the other places.
  comm::Communicator& members() { return members_; }
  comm::Communicator& ring() { return ring_; }
  /// Bytes that this rank has sent in exchanges since the last reset.
  std::int64_t sent_bytes() const;
  /// Seconds that this rank has waited for messages.
  double wait_seconds() const;
  void reset_accounting();

private:
  layout::ContextDivision division_;
  int rank_ = 0;
  comm::Communicator members_, ring_;
};

/// The heads of a rank of tp.
struct ContextHeads {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t first_head = 0;  ///< global number of the first query head
  double scale = 1.0;           ///< 1 / sqrt(head_dim)
  std::int64_t query_columns() const { return heads * head_dim; }
  std::int64_t key_columns() const { return kv_heads * head_dim; }  ///< and of values
  std::int64_t columns() const { return query_columns() + 2 * key_columns(); }
};

/// Attention of one rank, for one layer after the other: it holds scratch that they share.
///
/// What layers keep for backward (`qkv`, `lse`) is in the form that attention works on: after an all-to-all all tokens
/// of the place, of some heads. Traffic: layout::context_traffic, the gradients of keys and values in the type of sums;
/// backward of an all-to-all besides one number of that type for each query and head (delta).
template <class S>
class ContextAttention {
public:
  using A = kernels::Acc<S>;
  /// Elements of a layer's qkv and lse, for a microbatch of `micro` samples: the same on every rank.
  static std::int64_t qkv_elements(layout::ContextDivision const& division, ContextHeads const& heads,
                                   std::int64_t micro);
  static std::int64_t lse_elements(layout::ContextDivision const& division, ContextHeads const& heads,
                                   std::int64_t micro);

  /// Takes the scratch from an arena, or from a counter with the same take(): the same on every rank.
  template <class Source>
  static ContextAttention take(Source& source, layout::ContextDivision const& division, ContextHeads const& heads,
                               std::int64_t micro);
  /// Who it exchanges with; it must outlive this. Without: nobody.
  void attach(ExecSpace const& exec, ContextParallel& cp);

  /// One microbatch of one layer. Its division may be of another length than the scratch was taken for, but no longer.
  struct Call {
    layout::ContextDivision division;
    std::int64_t first_sample = 0, samples = 0;
    std::int64_t window = 0;
    View1<int const> documents{};  ///< [samples, seq_len]: first token of each token's document; empty: token 0
    kernels::Dropout dropout{};
  };
  /// qkv: of the rank's tokens [rows, columns()] -> what forward and backward take, in its place.
  void exchange(Call const& call, View1<S> qkv);
  /// out [rows, query_columns()] of the rank's tokens.
  void forward(Call const& call, View1<S const> qkv, View2<S> out, View1<A> lse);
  /// dqkv [rows, columns()] of the rank's tokens is overwritten.
  void backward(Call const& call, View1<S const> qkv, View2<S const> out, View1<A const> lse, View2<S const> dout,
                View2<S> dqkv);

private:
  struct Sizes;
  struct Place;
  struct Columns;
  /// What a call of attention works in.
  static std::int64_t scratch_bytes(layout::ContextDivision const& division, ContextHeads const& heads,
                                    std::int64_t micro);
  Place place_of(Call const& call) const;
  kernels::AttentionShape shape_of(Call const& call, Place const& place, int keys_of) const;
  template <class T>
  void to_place(Call const& call, Place const& place, Columns const& columns, kernels::HeadRows<T const> local,
                kernels::HeadRows<T> there, View1<T> sent, View1<T> received);
  template <class T>
  void to_local(Call const& call, Place const& place, Columns const& columns, kernels::HeadRows<T const> there,
                kernels::HeadRows<T> local, View1<T> sent, View1<T> received);
  void delta_to_place(Call const& call, Place const& place, View1<A const> local, View1<A> there);
  /// The keys and values of this rank's place, one behind the other in a row.
  void pack_keys(Place const& place, kernels::HeadRows<S const> qkv, View1<S> packed);
  template <class O>
  void forward_blocks(Call const& call, Place const& place, kernels::HeadRows<S const> qkv, kernels::HeadRows<O> out,
                      View1<A> lse);
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
  // With a ring or an all-gather.
  View1<S> blocks_;                    ///< keys and values of two places, or of all
  View1<A> block_gradients_;           ///< of three blocks, or of two for each other place
  View1<A> wide_queries_, wide_keys_;  ///< sums of results that have 16 bits
  // With an all-to-all.
  View1<S> sent_, received_, place_queries_, place_qkv_;
  View1<A> sent_delta_, received_delta_, place_delta_;
};

template <class S>
struct ContextAttention<S>::Sizes {
  std::int64_t rows, place_rows;  ///< the most of any rank
  std::int64_t heads, kv_heads;   ///< after an all-to-all
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
