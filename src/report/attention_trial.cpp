// SPDX-License-Identifier: Apache-2.0
// The trial of attention by a vendor's library. One sample of the model's shape is drawn at random and goes through
// forward and backward twice: by the library, and by p3d's GEMMs. The library is used if it took both calls and its
// numbers are close to those of the GEMMs (and, for "auto" without run.deterministic, if it was quicker).
#include <p3d/report/attention_trial.hpp>

#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/fused_attention.hpp>
#include <p3d/layout/block_sizes.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <type_traits>

namespace p3d::report {

namespace {

using device::ExecSpace;

/// One sample as this rank has its heads, with memory for one way of computing its attention.
template <class S>
struct Sample {
  using T = kernels::Acc<S>;
  kernels::AttentionShape shape;
  std::int64_t width, out_width;  ///< columns of qkv and of out
  device::Owned1<int> documents;  ///< with data.pack: three of unequal length
  device::Owned2<S> qkv, dout, out, dqkv;
  device::Owned1<T> lse, delta;
  device::Owned1<std::byte> memory;

  explicit Sample(config::Config const& c) {
    auto const sizes = layout::block_sizes(c);
    shape.samples = 1;
    shape.seq_len = c.model.seq_len;
    shape.queries = shape.keys = base::TokenSet::range(0, shape.seq_len);
    auto const members = layout::context_division(c).all_to_all;  // ranks that have a part of the heads each
    shape.heads = sizes.heads / members, shape.kv_heads = sizes.kv_heads / members;
    shape.head_dim = sizes.head_dim, shape.value_dim = sizes.value_dim;
    shape.scale = 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
    // Scores are of the size of 1, which a model's cap (50, say) would hardly bend: a library that forgot it would
    // pass.
    shape.softcap = c.model.attention_softcap > 0 ? 1.0 : 0.0;
    shape.window = c.model.window_of(0);
    if (c.data.pack) {
      documents = device::Owned1<int>("p3d::report::attention_documents", shape.seq_len);
      auto const first = device::host_mirror(documents);
      auto const n = static_cast<int>(shape.seq_len);
      for (int i = 0; i < n; ++i) first(i) = i < n / 5 ? 0 : (i < n * 2 / 3 ? n / 5 : n * 2 / 3);
      ExecSpace const exec;
      Kokkos::deep_copy(exec, documents, first);
      device::fence(exec, "p3d::report::attention_trial");  // before the host's copy goes
      shape.documents = documents;
    }
    out_width = shape.heads * shape.values();
    width = (shape.heads + shape.kv_heads) * shape.head_dim + shape.kv_heads * shape.values();
    qkv = drawn("qkv", width), dout = drawn("dout", out_width);
    out = device::Owned2<S>("p3d::report::attention_out", shape.seq_len, out_width);
    dqkv = device::Owned2<S>("p3d::report::attention_dqkv", shape.seq_len, width);
    lse = device::Owned1<T>("p3d::report::attention_lse", shape.statistics());
    delta = device::Owned1<T>("p3d::report::attention_delta", shape.statistics());
    memory = device::Owned1<std::byte>("p3d::report::attention_scratch", kernels::attention_scratch_bytes<S>(shape));
  }
  /// A matrix [seq_len, columns] of normal random numbers; matrices of the same name are equal.
  device::Owned2<S> drawn(char const* what, std::int64_t columns) const {
    device::Owned2<T> const wide("p3d::report::attention_draw", shape.seq_len, columns);
    kernels::fill_normal<T>(ExecSpace(), base::random_key(1, what), 1.0, 0, 0, columns, shape.seq_len, wide);
    if constexpr (std::is_same_v<S, T>) {
      return wide;
    } else {
      device::Owned2<S> const narrow("p3d::report::attention_input", shape.seq_len, columns);
      auto const n = shape.seq_len * columns;
      kernels::convert<T, S>(ExecSpace(), device::View1<T const>(wide.data(), n), device::View1<S>(narrow.data(), n));
      return narrow;
    }
  }
  /// The columns of qkv or dqkv from `first` on, as heads.
  template <class U>
  kernels::HeadRows<U> columns(U* data, std::int64_t first) const {
    return {data + first, width};
  }
  /// Computes forward and backward and returns the seconds that they took.
  double run() const {
    ExecSpace const exec;
    kernels::AttentionScratch const scratch{memory.data(), static_cast<std::int64_t>(memory.extent(0))};
    auto const keys = shape.heads * shape.head_dim, values = keys + shape.kv_heads * shape.head_dim;
    S const* const in = qkv.data();
    auto const q = columns(in, 0), k = columns(in, keys), v = columns(in, values);
    kernels::HeadRows<S const> const y{out.data(), out_width}, dy{dout.data(), out_width};
    auto const overwrite = kernels::Store::overwrite;
    device::fence(exec, "p3d::report::attention_trial");
    base::Stopwatch const watch;
    kernels::attention_forward<S>(exec, shape, {}, scratch, q, k, v, overwrite, {out.data(), out_width}, lse);
    kernels::attention_backward<S>(exec, shape, {}, scratch, q, k, v, dy, lse, delta, overwrite,
                                   columns(dqkv.data(), 0), overwrite, columns(dqkv.data(), keys),
                                   columns(dqkv.data(), values), {y, delta});
    device::fence(exec, "p3d::report::attention_trial");
    return watch.seconds();
  }
};

/// Returns |a - b|^2 and |b|^2.
template <class S>
std::array<double, 2> distance(device::View2<S const> a, device::View2<S const> b) {
  auto const x = device::host_copy(a), y = device::host_copy(b);
  std::array<double, 2> out{};
  for (std::size_t i = 0; i < x.extent(0); ++i)
    for (std::size_t j = 0; j < x.extent(1); ++j) {
      double const p = static_cast<float>(x(i, j)), q = static_cast<float>(y(i, j));
      out[0] += (p - q) * (p - q);
      out[1] += q * q;
    }
  return out;
}

template <class S>
std::function<void()> work_of(config::Config const& c) {
  auto const sample = std::make_shared<Sample<S> const>(c);
  return [sample] { sample->run(); };
}

}  // namespace

template <class P>
std::function<void()> attention_work(config::Config const& c) {
  return work_of<typename P::Storage>(c);
}

template <class P>
AttentionTrial try_attention(config::Config const& c) {
  using S = typename P::Storage;
  AttentionTrial trial;
  if constexpr (std::is_same_v<S, kernels::Acc<S>>) {
    trial.refusal = "attention as one kernel takes 16 bits alone";
  } else {
    Sample<S> const fused(c), gemms(c);
    // The first call plans and warms up; it also shows whether the library takes both directions.
    auto const before = kernels::fused_attention_calls();
    fused.run();
    trial.taken = kernels::fused_attention_calls() == before + 2;
    trial.refusal = kernels::fused_attention_refusal();
    if (!trial.taken) return trial;
    trial.fused_s = std::min(fused.run(), fused.run());
    kernels::WithoutFusedAttention const paused;
    gemms.run();
    trial.gemms_s = std::min(gemms.run(), gemms.run());
    // Outputs and gradients are each compared relative to their own size, so that neither hides the other.
    auto const out = distance<S>(fused.out, gemms.out), gradient = distance<S>(fused.dqkv, gemms.dqkv);
    trial.apart = std::sqrt((out[0] / out[1] + gradient[0] / gradient[1]) / 2);
  }
  return trial;
}

namespace {

/// The line for the log when attention is computed by GEMMs.
std::string by_gemms(std::string const& name, std::string const& why) {
  return fmt::format("Attention (linalg.attention): GEMMs of blocks; not {}: {}", name, why);
}

}  // namespace

template <class P>
std::string choose_attention(config::Config const& c, comm::Communicator& world) {
  using config::AttentionKernel;
  auto const wanted = c.linalg.attention;
  auto const name = kernels::fused_attention_name();
  kernels::use_fused_attention(false);
  if (device::on_host() || name.empty()) return "";
  if (wanted == AttentionKernel::gemms) return by_gemms(name, "as linalg.attention says");
  if (auto const why = plan::no_fused_attention(c); !why.empty()) return by_gemms(name, why);

  kernels::use_fused_attention(true, c.run.deterministic);
  auto const trial = comm::agree(world, "try attention both ways", [&] {
    kernels::reserve_fused_workspace(plan::fused_attention_bytes(c));
    return try_attention<P>(c);
  });
  bool const same = trial.taken && trial.apart < attention_tolerance;  // false for NaN
  // All ranks must agree: a rank that refuses, or gets other numbers, makes all ranks use GEMMs. Times are rank 0's, so
  // that every rank decides alike.
  double refusals[] = {trial.taken ? 0.0 : 1.0, same ? 0.0 : 1.0};
  double times[] = {trial.fused_s, trial.gemms_s};
  world.all_reduce(refusals, 2, comm::Type::float64, comm::Reduction::sum).wait();
  world.broadcast(times, 2, comm::Type::float64, 0).wait();
  bool const slower = wanted == AttentionKernel::automatic && !c.run.deterministic && times[0] > times[1];
  if (refusals[1] == 0.0 && !slower)
    return fmt::format("Attention (linalg.attention): {}; in a trial {:.2f} of the time of GEMMs of blocks", name,
                       times[0] / times[1]);
  kernels::use_fused_attention(false);
  kernels::reserve_fused_workspace(0);
  if (refusals[0] > 0.0)
    return by_gemms(name, trial.refusal.empty() ? "another rank's library refused it" : trial.refusal);
  if (refusals[1] > 0.0)
    return by_gemms(name, fmt::format("its numbers were {:.1e} apart from p3d's in a trial", trial.apart));
  return by_gemms(name, fmt::format("it took {:.2f} of their time in a trial", times[0] / times[1]));
}

#define P3D_INSTANTIATE(P)                                                 \
  template std::function<void()> attention_work<P>(config::Config const&); \
  template AttentionTrial try_attention<P>(config::Config const&);         \
  template std::string choose_attention<P>(config::Config const&, comm::Communicator&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::report
