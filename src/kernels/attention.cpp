// SPDX-License-Identifier: Apache-2.0
// The choice between attention's form for devices (attention_gemm.cpp), its form for the host (attention_blas.cpp) and
// a vendor's library (attention_fused.hpp), and the functions that do not depend on the form. A call goes to the
// library only if it is whole causal attention in 16 bits on a device; if the library refuses it, it takes the form for
// devices. Example: a call in fp32 on a device takes the form for devices.

#include <p3d/device/environment.hpp>
#include <p3d/kernels/fused_attention.hpp>

#include <optional>

#include "attention_blocks.hpp"
#include "attention_fused.hpp"
#include "attention_problem.hpp"

namespace p3d::kernels {

namespace {

/// Delta of some queries of one head, by one team.
template <class S>
struct Delta {
  static constexpr int tile = 32;
  Problem<S> p;
  DeltaRows<S> rows;
  std::int64_t tiles;  ///< tiles of queries of a head
  std::size_t bytes = 64;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const query0 = team.league_rank() % tiles * tile, left = p.queries - query0;
    std::int64_t const head = team.league_rank() / tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / tiles / p.shape.heads;
    rows.make(team, p, sample, head, query0, left < tile ? static_cast<int>(left) : tile);
  }
};

}  // namespace

bool have_device_form() { return !on_host; }

template <class S>
std::int64_t attention_scratch_bytes(AttentionShape const& largest) {
  return on_host ? 0 : AttentionBlocks<S>::scratch_bytes(largest);
}

template <class S>
void attention_delta(ExecSpace const& exec, AttentionShape const& shape, HeadRows<S const> out, HeadRows<S const> dout,
                     View1<Acc<S>> delta) {
  P3D_REQUIRE(static_cast<std::int64_t>(delta.extent(0)) >= shape.statistics(), "every query and head has a delta");
  Problem<S> const p(shape, {}, out, {}, {});
  std::int64_t const tiles = (p.queries + Delta<S>::tile - 1) / Delta<S>::tile;
  launch_tiles("p3d::kernels::attention_delta", exec, shape.samples * shape.heads * tiles,
               Delta<S>{p, {matrix(out), matrix(dout), delta}, tiles});
}

namespace {

/// The memory that calls of a vendor's library work in where it is larger than their own.
device::Owned1<std::byte>& fused_workspace() {
  static device::Owned1<std::byte> memory;
  return memory;
}

/// The call as a vendor's library takes it; empty where the call may not go there.
template <class S, class D>
std::optional<FusedCall> fused_call(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                                    AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k,
                                    HeadRows<S const> v, View1<Acc<S> const> lse) {
  auto const tokens = shape.queries.size();
  bool const whole = shape.queries == shape.keys && shape.queries == base::TokenSet::range(0, shape.seq_len);
  if constexpr (on_host || std::is_same_v<S, Acc<S>> || !std::is_same_v<S, D>) {
    return std::nullopt;
  } else {
    if (!fused_attention() || dropout.active() || !whole || tokens == 0) return std::nullopt;
    static bool const hooked = (Kokkos::push_finalize_hook([] { set_fused_attention(nullptr); }), true);
    static_cast<void>(hooked);  // the library's memory must go before Kokkos ends
    auto const& wide = fused_workspace();
    if (auto const bytes = static_cast<std::int64_t>(wide.extent(0)); bytes > scratch.bytes)
      scratch = {wide.data(), bytes};
    auto const rows = [](HeadRows<S const> r) { return FusedCall::Rows{const_cast<S*>(r.data), r.stride}; };
    FusedCall call;
    call.stream = device::native_stream(exec);
    call.type = std::is_same_v<S, bfloat16> ? FusedCall::Type::bfloat16 : FusedCall::Type::float16;
    call.samples = shape.samples, call.seq_len = tokens;
    call.heads = shape.heads, call.kv_heads = shape.kv_heads, call.head_dim = shape.head_dim;
    call.value_dim = shape.values();
    call.window = shape.window, call.scale = shape.scale, call.softcap = shape.softcap;
    if (shape.documents.extent(0) > 0) call.documents = shape.documents.data();
    call.q = rows(q), call.k = rows(k), call.v = rows(v);
    call.lse = const_cast<float*>(lse.data());
    call.workspace = scratch.data, call.workspace_bytes = scratch.bytes;
    return call;
  }
}

}  // namespace

void reserve_fused_workspace(std::int64_t bytes) {
  static bool const hooked = (Kokkos::push_finalize_hook([] { fused_workspace() = {}; }), true);
  static_cast<void>(hooked);
  fused_workspace() = {};
  if (bytes > 0)
    fused_workspace() = device::Owned1<std::byte>(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::kernels::fused_workspace"), bytes);
}

template <class S, class O>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                       AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                       Store store, HeadRows<O> out, View1<Acc<S>> lse) {
  P3D_REQUIRE(store == Store::overwrite || (std::is_same_v<O, Acc<S>>), "sums that go on are of the type of sums");
  P3D_REQUIRE(static_cast<std::int64_t>(lse.extent(0)) >= shape.statistics(), "every query and head has a log-sum-exp");
  if (auto call = fused_call<S, O>(exec, shape, dropout, scratch, q, k, v, lse); call && store == Store::overwrite) {
    call->out = {out.data, out.stride};
    if (run_fused(*fused_attention(), *call, false)) return;
  }
  if constexpr (on_host)
    blas::attention_forward<S, O>(exec, shape, dropout, scratch, q, k, v, store, out, lse);
  else
    gemm::attention_forward<S, O>(exec, shape, dropout, scratch, q, k, v, store, out, lse);
}

template <class S, class D>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                        AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                        HeadRows<S const> dout, View1<Acc<S> const> lse, View1<Acc<S> const> delta, Store store_q,
                        HeadRows<D> dq, Store store_kv, HeadRows<D> dk, HeadRows<D> dv, WholeOutput<S> const& whole) {
  bool const ends = store_q == Store::overwrite && store_kv == Store::overwrite;
  P3D_REQUIRE(ends || (std::is_same_v<D, Acc<S>>), "sums that go on are of the type of sums");
  P3D_REQUIRE(!whole.out.data || (whole.delta.data() == delta.data() && shape.queries == shape.keys),
              "a whole output is over all keys, and its delta is the one that is read");
  if (auto call = fused_call<S, D>(exec, shape, dropout, scratch, q, k, v, lse); call && ends && whole.out.data) {
    call->out = {const_cast<S*>(whole.out.data), whole.out.stride};
    call->dout = {const_cast<S*>(dout.data), dout.stride};
    call->dq = {dq.data, dq.stride}, call->dk = {dk.data, dk.stride}, call->dv = {dv.data, dv.stride};
    if (run_fused(*fused_attention(), *call, true)) return;
  }
  if constexpr (on_host)
    blas::attention_backward<S, D>(exec, shape, dropout, scratch, q, k, v, dout, lse, delta, store_q, dq, store_kv, dk,
                                   dv, whole);
  else
    gemm::attention_backward<S, D>(exec, shape, dropout, scratch, q, k, v, dout, lse, delta, store_q, dq, store_kv, dk,
                                   dv, whole);
}

template <class From, class To>
void copy_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<From const> from,
               Given<HeadRows<To>> to) {
  for_chunks<element_width>(
      "p3d::kernels::copy_rows", exec, rows, columns, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        From const* const in = from.data + r * from.stride + c;
        To* const out = to.data + r * to.stride + c;
        P3D_SIMD
        for (int i = 0; i < n; ++i) put(out[i], in[i]);
      });
}

template <class S>
void add_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<S const> from,
              Given<HeadRows<S>> to) {
  for_chunks<element_width>(
      "p3d::kernels::add_rows", exec, rows, columns, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        S const* const in = from.data + r * from.stride + c;
        S* const out = to.data + r * to.stride + c;
        P3D_SIMD
        for (int i = 0; i < n; ++i) put(out[i], static_cast<Acc<S>>(out[i]) + static_cast<Acc<S>>(in[i]));
      });
}

#define P3D_INSTANTIATE(From, To) \
  template void copy_rows<From, To>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<From const>, HeadRows<To>);
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(bfloat16, bfloat16)
P3D_INSTANTIATE(float16, float16)
P3D_INSTANTIATE(float, bfloat16)
P3D_INSTANTIATE(float, float16)
#undef P3D_INSTANTIATE
template void add_rows<double>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<double const>, HeadRows<double>);
template void add_rows<float>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<float const>, HeadRows<float>);
template void add_rows<bfloat16>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<bfloat16 const>,
                                 HeadRows<bfloat16>);
template void add_rows<float16>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<float16 const>,
                                HeadRows<float16>);

#define P3D_INSTANTIATE(S, D) P3D_INSTANTIATE_ATTENTION(, S, D)
P3D_ATTENTION_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(S)                                                                                        \
  template void attention_delta<S>(ExecSpace const&, AttentionShape const&, HeadRows<S const>, HeadRows<S const>, \
                                   View1<Acc<S>>);                                                                \
  template std::int64_t attention_scratch_bytes<S>(AttentionShape const&);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
