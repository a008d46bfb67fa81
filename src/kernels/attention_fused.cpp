// SPDX-License-Identifier: Apache-2.0
// Calls to a vendor's attention library: which library this process uses, and how a call is cut into pieces whose plans
// work in the scratch memory that there is.
#include "attention_fused.hpp"

#include <p3d/base/error.hpp>
#include <p3d/kernels/fused_attention.hpp>

#include <utility>

namespace p3d::kernels {

namespace {

/// The library of this process, with a count of the objects that keep calls from it (WithoutFusedAttention).
struct State {
  std::shared_ptr<FusedAttention> library;
  int paused = 0;
  std::int64_t calls = 0;
  std::string refusal;
};
State& state() {
  static State the_state;
  return the_state;
}

}  // namespace

FusedAttention::~FusedAttention() = default;

std::string fused_attention_name() {
  auto const library = vendor_attention();
  return library ? library->name() : "";
}
void use_fused_attention(bool use, bool deterministic) {
  set_fused_attention(use ? vendor_attention({.deterministic = deterministic}) : nullptr);
}
std::int64_t fused_attention_calls() { return state().calls; }
std::string fused_attention_refusal() { return state().refusal; }

WithoutFusedAttention::WithoutFusedAttention() { ++state().paused; }
WithoutFusedAttention::~WithoutFusedAttention() { --state().paused; }

bool uses_fused_attention() { return state().library != nullptr; }

std::shared_ptr<FusedAttention> fused_attention() { return state().paused > 0 ? nullptr : state().library; }
void set_fused_attention(std::shared_ptr<FusedAttention> library) {
  state().library = std::move(library);
  state().refusal.clear();
}

bool FusedCall::aligned(bool backward) const {
  bool all = true;
  auto const look = [&](Rows const& rows) {
    all = all && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.stride % 8 == 0;
  };
  for (auto const& rows : {q, k, v, out}) look(rows);
  if (backward)
    for (auto const& rows : {dout, dq, dk, dv}) look(rows);
  return all && head_dim % 8 == 0 && value_dim % 8 == 0;
}

FusedCall::Shape FusedCall::shape(bool backward) const {
  Shape s{.type = type,
          .samples = samples,
          .seq_len = seq_len,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .value_dim = value_dim,
          .window = window,
          .scale = static_cast<float>(scale),
          .softcap = static_cast<float>(softcap),
          .documents = documents != nullptr,
          .q_stride = q.stride,
          .k_stride = k.stride,
          .v_stride = v.stride,
          .out_stride = out.stride};
  if (backward) {
    s.dout_stride = dout.stride;
    s.dq_stride = dq.stride;
    s.dk_stride = dk.stride;
    s.dv_stride = dv.stride;
  }
  return s;
}

std::optional<FusedCut> cut_fused(FusedAttention& library, FusedCall::Shape const& shape, bool backward,
                                  std::int64_t bytes) {
  auto piece = shape;
  auto const fits = [&](std::int64_t samples, std::int64_t kv_heads) -> std::optional<bool> {
    piece.samples = samples;
    piece.kv_heads = kv_heads;
    piece.heads = shape.heads / shape.kv_heads * kv_heads;
    auto const needed = library.plan(piece, backward);
    return needed ? std::optional(*needed <= bytes) : std::nullopt;
  };
  for (std::int64_t samples = shape.samples; samples > 0; --samples) {
    if (shape.samples % samples != 0) continue;
    auto const fit = fits(samples, shape.kv_heads);
    if (!fit) return std::nullopt;
    if (*fit) return FusedCut{samples, shape.kv_heads};
  }
  for (std::int64_t kv_heads = shape.kv_heads - 1; kv_heads > 0; --kv_heads) {
    if (shape.kv_heads % kv_heads != 0) continue;
    auto const fit = fits(1, kv_heads);
    if (!fit) return std::nullopt;
    if (*fit) return FusedCut{1, kv_heads};
  }
  return std::nullopt;
}

bool run_fused(FusedAttention& library, FusedCall const& call, bool backward) {
  if (!call.aligned(backward)) {
    state().refusal = "rows are not on 16 bytes";
    return false;
  }
  auto const cut = cut_fused(library, call.shape(backward), backward, call.workspace_bytes);
  if (!cut) {
    state().refusal = library.refusal();
    if (state().refusal.empty()) state().refusal = "no piece of a call works in the memory that there is";
    return false;
  }
  if ((cut->samples < call.samples || cut->kv_heads < call.kv_heads) && call.seq_len % 4 != 0) {
    state().refusal = "numbers of a piece's tokens are not on 16 bytes";  // documents and lse, 4 bytes a token
    return false;
  }
  auto const group = call.heads / call.kv_heads;
  for (std::int64_t sample = 0; sample < call.samples; sample += cut->samples) {
    for (std::int64_t kv = 0; kv < call.kv_heads; kv += cut->kv_heads) {
      auto piece = call;
      piece.samples = cut->samples;
      piece.kv_heads = cut->kv_heads;
      piece.heads = group * cut->kv_heads;
      auto const move = [&](FusedCall::Rows& rows, std::int64_t column) {
        if (rows.data != nullptr)
          rows.data = static_cast<std::uint16_t*>(rows.data) + sample * call.seq_len * rows.stride + column;
      };
      for (auto* rows : {&piece.q, &piece.dq}) move(*rows, kv * group * call.head_dim);
      for (auto* rows : {&piece.out, &piece.dout}) move(*rows, kv * group * call.value_dim);
      for (auto* rows : {&piece.k, &piece.dk}) move(*rows, kv * call.head_dim);
      for (auto* rows : {&piece.v, &piece.dv}) move(*rows, kv * call.value_dim);
      if (piece.documents != nullptr) piece.documents += sample * call.seq_len;
      piece.lse += (sample * call.heads + kv * group) * call.seq_len;
      bool const done = backward ? library.backward(piece) : library.forward(piece);
      P3D_REQUIRE(done, "a library does what it has made a plan for: " + library.refusal());
    }
  }
  ++state().calls;
  return true;
}

}  // namespace p3d::kernels
