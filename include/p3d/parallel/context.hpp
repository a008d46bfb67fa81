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
//
// With latent attention the keys and values of all heads are made of a short latent of each token. Where that is fewer
// bytes (layout::latents_are_less), latents travel in their place: each rank makes the keys and values of its heads of
// what arrives, in forward and again in backward, and maps their gradients back to those of latents before these
// travel to the tokens' owner. For DeepSeek-V3 a token is 576 numbers in place of 40,960 / tp. It costs, of each other
// place's tokens, one more product with kv_up forward and one more backward, beside those for gradients which the
// owner of the tokens has no more: 2 kv_lora_rank (nope + value) operations each for a token and head, against 2 (key +
// value) for each key that attention sees. Memory: the latents of a place and their gradients, and the keys and values
// of one other place at a time, in place of those of two or all places.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/parallel/buffers.hpp>

#include <cstdint>

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

using layout::ContextHeads;

/// The scratch of attention.
template <class S>
struct AttentionBuffers {
  P3D_BUFFER_VIEWS(P3D_ATTENTION_BUFFERS)
};

/// Latents, which travel in place of keys and values, and how keys and values are made of them. The layer knows that; a
/// row is a token, with ContextHeads::latent numbers.
template <class S>
class TravellingLatents {
public:
  /// Heads [first, first + number) of the rank of tp.
  struct Heads {
    std::int64_t first = 0, number = 0;
  };
  TravellingLatents() = default;
  TravellingLatents(TravellingLatents const&) = delete;
  TravellingLatents& operator=(TravellingLatents const&) = delete;
  virtual ~TravellingLatents() = default;

  /// Fills `rows` with the latents of the rank's own tokens.
  virtual void own(View2<S> rows) const = 0;
  /// Makes keys and values of these heads of the latents of any place.
  virtual void expand(Heads heads, View2<S const> latents, View2<S> keys, View2<S> values) const = 0;
  /// The transpose: overwrites dlatents with what these heads add to the gradient of those latents, and adds what they
  /// add to the gradient of the weights that expand() multiplies with. It comes once for each place.
  virtual void expand_backward(Heads heads, View2<S const> latents, View2<S const> dkeys, View2<S const> dvalues,
                               View2<kernels::Acc<S>> dlatents) const = 0;
  /// Where the gradient of own()'s rows goes, the sum over all ranks of cp.
  virtual View2<S> gradient() const = 0;
};

/// Attention of one rank, for one layer after the other. It has scratch memory that all layers share.
///
/// The arrays that layers keep for backward (`qkv`, `lse`) are in the form that attention works on: after an all-to-all
/// they have all tokens of the place and some of the heads. Traffic is that of layout::context_traffic, with the
/// gradients of keys and values in the type of sums; backward of an all-to-all sends besides one number of that type
/// for each query and head (delta). Sums of gradients of latents over the members of a place have type S, as those over
/// tp have.
template <class S>
class ContextAttention {
public:
  using A = kernels::Acc<S>;
  /// Takes the scratch memory from an arena, or from a counter with the same take_bytes(): the same bytes on every
  /// rank.
  template <class Source>
  static ContextAttention take(Source& source, layout::AttentionSizes const& sizes, ContextHeads const& heads);
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
    View1<S const> sinks{};  ///< [heads of the rank]: logits of attention sinks (kernels/attention_sinks.hpp), or empty
    TravellingLatents<S> const* latents = nullptr;  ///< there where division.latents
  };
  /// The all-to-all of forward, in place: qkv of the rank's tokens [rows, columns()] becomes what forward and backward
  /// take. Without an all-to-all nothing is done. Where latents travel, qkv comes with queries alone: keys and values
  /// of the place's tokens are made here.
  void exchange(Call const& call, View1<S> qkv);
  /// Brings the latents of the place, where latents travel. exchange() does so; backward, and a forward of its own
  /// before it, need them once more.
  void bring_latents(Call const& call);
  /// out [rows, out_columns()] of the rank's tokens, and lse, from the exchanged qkv. Both are those with the sinks.
  void forward(Call const& call, View1<S const> qkv, View2<S> out, View1<A> lse);
  /// Overwrites dqkv [rows, columns()] of the rank's tokens with the gradient. Where latents travel, only its queries
  /// are that, and the gradients of latents go to call.latents->gradient(); it comes after bring_latents(), whose rows
  /// it overwrites.
  void backward(Call const& call, View1<S const> qkv, View2<S const> out, View1<A const> lse, View2<S const> dout,
                View2<S> dqkv);
  /// Adds the gradient of the sinks, of the tokens that the rank attends with, to `grad` [heads of the rank]. It comes
  /// right after backward() of the same call, whose delta it reads. Without sinks nothing is done.
  template <class G>
  void sinks_backward(Call const& call, View1<A const> lse, View1<G> grad);

private:
  struct Work;

  ContextHeads heads_;
  std::int64_t samples_ = 0;  ///< most samples of a microbatch
  ExecSpace exec_{};
  ContextParallel* cp_ = nullptr;
  AttentionBuffers<S> at_;
  kernels::AttentionScratch scratch_;  ///< at_.scores
};

/// The sizes that the scratch memory depends on.
template <class S>
template <class Source>
ContextAttention<S> ContextAttention<S>::take(Source& source, layout::AttentionSizes const& sizes,
                                              ContextHeads const& heads) {
  ContextAttention a;
  a.heads_ = heads;
  a.samples_ = sizes.samples;
  layout::BlockSizes s;
  s.attention = sizes;
  s.on_device = kernels::have_device_form();
  take_all<S>(source, s, a.at_);
  a.scratch_ = {a.at_.scores.data(), static_cast<std::int64_t>(a.at_.scores.size())};
  return a;
}

}  // namespace p3d::parallel
