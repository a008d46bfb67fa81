// SPDX-License-Identifier: Apache-2.0
// Each kernel against the ceilings of the core it runs on: bytes that must move against memory bandwidth (triad),
// operations against the speed of a large GEMM. `roof` is the time that the slower of the two allows over the
// time it took.
//
// Bytes: what must move between memory and the core if nothing is in cache. FLOPs: every addition, multiplication,
// division and root counts one, an exponential 20. Small operands stay in cache, so some kernels stand above the roof
// of DRAM.
//
//   bench_kernels [tokens hidden ffn vocabulary heads] > kernels.csv     (default 1024 768 3072 50257 12: GPT-2 124M)
//   bench_kernels --bf16 [...] > bf16.csv           (or --fp16: the kernels in float and in 16 bits, in turn; ratios)
//   bench_kernels --roof-bf16 [...] > roof.csv      (the first table for storage in bf16, on a host or a GPU)
//   bench_kernels --attention 1024 2048 4096 8192 > attention.csv       (head dimension 64, 4 heads; peak memory)
//   bench_kernels --attention-bf16 16384 > both.csv (GPUs: by GEMMs and by the vendor's library, so many tokens a call)

#include "bench.hpp"

#include <p3d/base/memory_sizes.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/kernels/cross_entropy.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/embedding.hpp>
#include <p3d/kernels/fused_attention.hpp>
#include <p3d/kernels/norm.hpp>
#include <p3d/kernels/rope.hpp>
#include <p3d/kernels/update.hpp>
#include <p3d/linalg/gemm.hpp>

#include <array>
#include <cmath>
#include <memory>
#include <type_traits>

namespace {

using namespace p3d;
using device::Owned1;
using device::Owned2;
using device::View1;
using device::View2;
using F = float;

/// Numbers of ordinary size, different everywhere.
template <class View>
void fill(View const& v) {
  auto const host = Kokkos::create_mirror_view(v);
  std::uint32_t x = 1;
  for (std::size_t i = 0; i < host.size(); ++i) {
    x = x * 1664525u + 1013904223u;
    host.data()[i] = static_cast<typename View::value_type>(static_cast<F>(x >> 8) / static_cast<F>(1 << 23) - 1.0f);
  }
  Kokkos::deep_copy(v, host);
}
template <class S = F>
Owned2<S> matrix(std::int64_t rows, std::int64_t cols) {
  Owned2<S> m(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::bench::matrix"), rows, cols);
  p3d::device::prefer_large_pages(m.data(), m.span() * sizeof(S));
  fill(m);
  return m;
}
template <class S = F>
Owned1<S> vector(std::int64_t n) {
  auto const v = p3d::device::large_array<S>("p3d::bench::vector", n);
  fill(v);
  return v;
}

kernels::AttentionShape self_attention(std::int64_t n, std::int64_t heads, std::int64_t dim, std::int64_t window = 0) {
  kernels::AttentionShape s;
  s.samples = 1;
  s.seq_len = n;
  s.queries = s.keys = p3d::base::TokenSet::range(0, n);
  s.heads = s.kv_heads = heads;
  s.head_dim = dim;
  s.scale = 0.125;
  s.window = window;
  return s;
}
template <class S>
Owned1<std::byte> scratch_memory(kernels::AttentionShape const& shape) {
  return Owned1<std::byte>("p3d::bench::scratch", kernels::attention_scratch_bytes<S>(shape));
}
kernels::AttentionScratch scratch_in(Owned1<std::byte> const& memory) {
  return {memory.data(), static_cast<std::int64_t>(memory.extent(0))};
}
template <class S>
void attend(device::ExecSpace const& e, kernels::AttentionShape const& shape, device::View2<S const> qkv,
            device::View2<S> out, device::View1<kernels::Acc<S>> lse, kernels::AttentionScratch scratch,
            kernels::Dropout const& drop = {}) {
  auto const h = shape.heads * shape.head_dim;
  kernels::attention_forward<S>(e, shape, drop, scratch, kernels::heads_of(qkv), kernels::heads_of(qkv, h),
                                kernels::heads_of(qkv, 2 * h), kernels::Store::overwrite, kernels::heads_of(out), lse);
}
template <class S>
void attend_backward(device::ExecSpace const& e, kernels::AttentionShape const& shape, device::View2<S const> qkv,
                     device::View2<S const> out, device::View1<kernels::Acc<S> const> lse, device::View2<S const> d,
                     device::View1<kernels::Acc<S>> delta, device::View2<S> dqkv, kernels::AttentionScratch scratch,
                     kernels::Dropout const& drop = {}) {
  auto const h = shape.heads * shape.head_dim;
  auto const all = kernels::Store::overwrite;
  kernels::attention_delta<S>(e, shape, kernels::heads_of(out), kernels::heads_of(d), delta);
  kernels::attention_backward<S>(e, shape, drop, scratch, kernels::heads_of(qkv), kernels::heads_of(qkv, h),
                                 kernels::heads_of(qkv, 2 * h), kernels::heads_of(d), lse,
                                 device::View1<kernels::Acc<S> const>(delta), all, kernels::heads_of(dqkv), all,
                                 kernels::heads_of(dqkv, h), kernels::heads_of(dqkv, 2 * h));
}

/// FLOPs of one exponential as the kernels do it (numeric.hpp): seven steps of a polynomial and the scaling.
constexpr double exponential = 20;

/// Launches of a kernel in one sample of its time: on a GPU many, so that the wait for the last is no part of it.
int launches() { return device::on_host() ? 1 : 20; }

struct Row {
  std::string name;
  double bytes;  ///< read or written, once each
  double flops;
  bench::Case timing;
  double seconds() const { return timing.best() / launches(); }
};

/// Memory bandwidth by a triad, and the speed of a large GEMM of type S.
template <class S = F>
struct Ceilings {
  std::int64_t n = device::on_host() ? 1024 : 8192;
  bench::Triad triad;
  Owned2<S> a = matrix<S>(n, n), b = matrix<S>(n, n), c = matrix<S>(n, n);
  bench::Case memory{[this] { triad(); }};
  bench::Case product{[this] {
    linalg::gemm<S>(device::ExecSpace(), linalg::Op::none, linalg::Op::none, 1.0f, View2<S const>(a), View2<S const>(b),
                    0.0f, View2<S>(c));
    Kokkos::fence();
  }};
  double bandwidth() const { return bench::Triad::bytes() / memory.best(); }
  double speed() const {
    double const size = static_cast<double>(n);
    return 2.0 * size * size * size / product.best();
  }
};

template <class S>
void report(std::vector<Row>& rows, int rounds) {
  Ceilings<S> roof;
  std::vector<bench::Case*> cases{&roof.memory, &roof.product};
  for (auto& r : rows) cases.push_back(&r.timing);
  bench::time_in_turn(cases, rounds);
  fmt::print("# triad {:.2f} GB/s, product of {}^3 {:.2f} GFLOP/s\n", roof.bandwidth() * 1e-9, roof.n,
             roof.speed() * 1e-9);
  fmt::print("kernel,milliseconds,GB/s,of_triad,GFLOP/s,of_product,roof,triad GB/s,product GFLOP/s\n");
  for (auto const& r : rows) {
    double const t = r.seconds(), bytes = r.bytes;
    fmt::print("{},{:.4f},{:.2f},{:.3f},{:.2f},{:.3f},{:.3f},{:.2f},{:.2f}\n", r.name, t * 1e3, bytes / t * 1e-9,
               bytes / t / roof.bandwidth(), r.flops / t * 1e-9, r.flops / t / roof.speed(),
               std::max(bytes / roof.bandwidth(), r.flops / roof.speed()) / t, roof.bandwidth() * 1e-9,
               roof.speed() * 1e-9);
  }
}

/// tokens, hidden, ffn, vocabulary, heads
using Sizes = std::array<std::int64_t, 5>;

/// The kernels on storage type S.
template <class S>
std::vector<Row> all_kernels(Sizes const& sizes) {
  using A = device::accumulate_t<S>;
  auto const [n, h, f, v, heads] = sizes;
  device::ExecSpace const e;
  std::vector<Row> rows;
  /// `numbers` of type S that are read or written, once each.
  auto const add = [&](std::string const& name, double numbers, double flops, std::function<void()> work) {
    rows.push_back({name, numbers * static_cast<double>(sizeof(S)), flops, {[work, e] {
                      for (int i = 0; i < launches(); ++i) work();
                      device::fence(e, "p3d::bench::kernel");
                    }}});
  };
  double const wide_numbers = static_cast<double>(sizeof(F)) / sizeof(S);  // a float in numbers of type S
  auto const N = static_cast<double>(n), H = static_cast<double>(h), FF = static_cast<double>(f),
             V = static_cast<double>(v);
  auto const x = matrix<S>(n, h), y = matrix<S>(n, h), d = matrix<S>(n, h);
  auto const wide = matrix<S>(n, 2 * f), act = matrix<S>(n, f), dact = matrix<S>(n, f), dwide = matrix<S>(n, 2 * f);
  auto const weight = vector<S>(h), bias = vector<S>(h), long_bias = vector<S>(f);
  auto const dweight = vector<A>(h), dbias = vector<A>(h), mean = vector<A>(n), rstd = vector<A>(n),
             long_dbias = vector<A>(f);
  auto const up = device::columns(View2<S>(wide), 0, f), dup = device::columns(View2<S>(dwide), 0, f);
  add("layernorm_forward", 2 * N * H, 8 * N * H,
      [=] { kernels::layernorm_forward<S>(e, x, weight, bias, 1e-5, y, mean, rstd); });
  add("layernorm_backward", 4 * N * H, 16 * N * H,
      [=] { kernels::layernorm_backward<S>(e, d, x, weight, mean, rstd, kernels::Store::add, y, dweight, dbias); });
  add("rmsnorm_forward", 2 * N * H, 4 * N * H, [=] { kernels::rmsnorm_forward<S>(e, x, weight, 1e-5, y, rstd); });
  add("rmsnorm_backward", 4 * N * H, 13 * N * H,
      [=] { kernels::rmsnorm_backward<S>(e, d, x, weight, rstd, kernels::Store::add, y, dweight); });
  add("fill_with_bias", N * FF, 0, [=] { kernels::fill_with_bias<S>(e, act, long_bias); });
  add("bias_backward", N * FF, N * FF, [=] { kernels::bias_backward<S>(e, act, long_dbias); });
  add("gelu_forward", 2 * N * FF, (exponential + 9) * N * FF, [=] { kernels::gelu_forward<S>(e, up, act); });
  add("gelu_backward", 3 * N * FF, (exponential + 19) * N * FF, [=] { kernels::gelu_backward<S>(e, up, dact, dup); });
  add("swiglu_forward", 3 * N * FF, (exponential + 4) * N * FF, [=] { kernels::swiglu_forward<S>(e, wide, act); });
  add("swiglu_backward", 5 * N * FF, (exponential + 11) * N * FF,
      [=] { kernels::swiglu_backward<S>(e, wide, dact, dwide); });
  add("residual_forward", 3 * N * H, 2 * N * H, [=] { kernels::residual_forward<S>(e, {0, 1, n}, x, y, bias, {}, y); });
  auto const logits = matrix<S>(n, v);
  Owned1<int> const targets("p3d::bench::targets", n);
  auto const top = vector<A>(n), lse = vector<A>(n);
  auto const sums = matrix<A>(2, n);
  add("logits_parts", N * V, (exponential + 3) * N * V,
      [=] { kernels::logits_parts<S>(e, logits, v, 0, targets, lse, top, sums); });
  add("cross_entropy_backward", 2 * N * V, (exponential + 2) * N * V,
      [=] { kernels::cross_entropy_backward<S>(e, targets, lse, v, 0, 1e-3f, logits); });
  auto const table = matrix<S>(v, h);
  auto const dtable = matrix<A>(v, h);
  add("embedding_forward", 2 * N * H, 0, [=] { kernels::embedding_forward<S>(e, targets, table, 0, x); });
  add("embedding_backward", 3 * N * H, N * H, [=] { kernels::embedding_backward<S>(e, targets, x, 0, dtable); });
  auto const qkv = matrix<S>(n, 3 * h), dqkv = matrix<S>(n, 3 * h);
  auto const frequencies = matrix<double>(1, h / heads / 2);
  add("rope", 4 * N * H, 6 * N * H, [=] {
    kernels::rope<S>(e, {0, 1, n}, {2 * heads, h / heads}, frequencies, kernels::Rotation::forward, qkv);
  });
  auto const shape = self_attention(n, heads, h / heads);
  auto const delta = vector<A>(n * heads), attention_lse = vector<A>(n * heads);
  auto const memory = scratch_memory<S>(shape);
  double const causal = 4.0 * N * (N + 1) / 2 * H;
  add("attention_forward", 4 * N * H, causal, [=] { attend<S>(e, shape, qkv, x, attention_lse, scratch_in(memory)); });
  add("attention_backward", 8 * N * H, 2.5 * causal,
      [=] { attend_backward<S>(e, shape, qkv, x, attention_lse, d, delta, dqkv, scratch_in(memory)); });
  auto const drop = kernels::make_dropout(0.1, 1, "bench");
  add("attention_forward_dropout", 4 * N * H, causal,
      [=] { attend<S>(e, shape, qkv, x, attention_lse, scratch_in(memory), drop); });
  add("attention_backward_dropout", 8 * N * H, 2.5 * causal,
      [=] { attend_backward<S>(e, shape, qkv, x, attention_lse, d, delta, dqkv, scratch_in(memory), drop); });
  std::int64_t const params = std::int64_t{1} << 24;
  auto const P = static_cast<double>(params);
  auto const p = vector(params), g = vector(params), m = vector(params), s = vector(params);
  auto const stored = vector<S>(std::is_same_v<S, F> ? 0 : params);
  Kokkos::deep_copy(s, 0.5f);  // second moments are not negative
  kernels::AdamW const step{1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0};
  add("adamw", (7 + (std::is_same_v<S, F> ? 1 : 0.5)) * P * wide_numbers, 16 * P,
      [=] { kernels::adamw<F, F, F, S>(e, step, p, g, m, s, stored); });
  device::Owned1<double> const squares("bench::squares", 1);
  add("sum_squares", P * wide_numbers, 2 * P, [=] {
    kernels::add_sum_squares<F>(e, g, {{0, params}}, squares);
    kernels::take_sums(e, squares);
  });
  add("fill", P * wide_numbers, 0, [=] { kernels::fill<F>(e, m, 0.0f); });
  return rows;
}

/// Time in float over time in 16 bits.
template <class S>
void compare(Sizes const& sizes) {
  auto rows = all_kernels<F>(sizes), narrow = all_kernels<S>(sizes);
  std::vector<bench::Case*> cases;
  for (std::size_t i = 0; i < rows.size(); ++i) cases.insert(cases.end(), {&rows[i].timing, &narrow[i].timing});
  bench::time_in_turn(cases, 15);
  fmt::print("kernel,fp32_ms,narrow_ms,speedup\n");
  for (std::size_t i = 0; i < rows.size(); ++i)
    fmt::print("{},{:.4f},{:.4f},{:.3f}\n", rows[i].name, rows[i].timing.best() * 1e3, narrow[i].timing.best() * 1e3,
               rows[i].timing.best() / narrow[i].timing.best());
}

/// Peak resident memory of this process in MiB.
double peak_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024.0;
  return 0.0;
}

/// Sequence lengths must ascend: the peak only grows.
void attention(std::vector<std::int64_t> const& lengths) {
  constexpr std::int64_t heads = 4, dim = 64, h = heads * dim;
  device::ExecSpace const e;
  Ceilings<> roof;
  fmt::print("tokens,forward_ms,forward_of_product,backward_ms,backward_of_product,peak_MiB\n");
  for (auto n : lengths) {
    auto const qkv = matrix(n, 3 * h), dqkv = matrix(n, 3 * h), out = matrix(n, h), d = matrix(n, h);
    auto const shape = self_attention(n, heads, dim);
    auto const delta = vector(n * heads), lse = vector(n * heads);
    auto const memory = scratch_memory<F>(shape);
    bench::Case forward{[&] {
      attend<F>(e, shape, qkv, out, lse, scratch_in(memory));
      device::fence(e, "p3d::bench::attention");
    }};
    bench::Case backward{[&] {
      attend_backward<F>(e, shape, qkv, out, lse, d, delta, dqkv, scratch_in(memory));
      device::fence(e, "p3d::bench::attention");
    }};
    bench::time_in_turn({&roof.product, &forward, &backward}, 9);
    double const flops =
        2.0 * static_cast<double>(n) * static_cast<double>(n + 1) * h;  // two products of the causal half
    fmt::print("{},{:.3f},{:.3f},{:.3f},{:.3f},{:.1f}\n", n, forward.best() * 1e3,
               flops / forward.best() / roof.speed(), backward.best() * 1e3,
               2.5 * flops / backward.best() / roof.speed(), peak_memory());
  }
}

/// Attention on a GPU, by GEMMs of blocks and by the vendor's library, at shapes of models of today. TFLOP/s count the
/// causal half of the scores.
void attention_both(std::int64_t tokens) {
  using S = device::bfloat16;
  struct Heads {
    std::int64_t seq_len, heads, kv_heads, dim, window;
    std::int64_t value_dim = 0, document = 0;  ///< 0: dim; 0: a sample is one document
    double softcap = 0;
  };
  device::ExecSpace const e;
  auto const name = kernels::fused_attention_name();
  fmt::print("# vendor's library: {}\n", name.empty() ? "none" : name);
  fmt::print(
      "by,seq_len,heads,kv_heads,head_dim,value_dim,window,document,softcap,samples,forward_ms,backward_ms,"
      "forward_TFLOPs,backward_TFLOPs,calls_taken,scratch_MiB\n");
  for (Heads const& x : {Heads{2048, 32, 32, 64, 0},
                         {2048, 32, 4, 64, 0},
                         {2048, 32, 32, 128, 0},
                         {2048, 32, 8, 128, 0},
                         {8192, 32, 32, 64, 0},
                         {8192, 32, 4, 64, 0},
                         {8192, 32, 8, 128, 0},
                         {8192, 32, 8, 128, 1024},
                         {2048, 32, 4, 64, 0, 0, 512},
                         {8192, 32, 8, 128, 0, 0, 1024},
                         {4096, 8, 4, 256, 0, 0, 0, 50.0},
                         {4096, 16, 16, 192, 0, 128}}) {
    kernels::AttentionShape shape;
    shape.samples = std::max<std::int64_t>(1, tokens / x.seq_len);
    shape.seq_len = x.seq_len;
    shape.queries = shape.keys = p3d::base::TokenSet::range(0, x.seq_len);
    shape.heads = x.heads, shape.kv_heads = x.kv_heads, shape.head_dim = x.dim, shape.window = x.window;
    shape.value_dim = x.value_dim, shape.softcap = x.softcap;
    shape.scale = 1.0 / std::sqrt(static_cast<double>(x.dim));
    std::int64_t const n = shape.samples * x.seq_len, out_width = x.heads * shape.values(), keys = x.heads * x.dim,
                       values = keys + x.kv_heads * x.dim, width = values + x.kv_heads * shape.values();
    Owned1<int> const documents("p3d::bench::documents", x.document > 0 ? n : 0);
    if (x.document > 0) {
      auto const first = Kokkos::create_mirror_view(documents);
      for (std::int64_t i = 0; i < n; ++i) first(i) = static_cast<int>(i % x.seq_len / x.document * x.document);
      Kokkos::deep_copy(documents, first);
      shape.documents = documents;
    }
    auto const qkv = matrix<S>(n, width), dqkv = matrix<S>(n, width), out = matrix<S>(n, out_width),
               d = matrix<S>(n, out_width);
    auto const lse = vector<F>(shape.statistics()), delta = vector<F>(shape.statistics());
    auto const memory = scratch_memory<S>(shape);
    kernels::reserve_fused_workspace(p3d::base::fused_attention_bytes(shape.samples, x.seq_len, x.heads, x.kv_heads,
                                                                      std::max(x.dim, shape.values()), true));
    auto const all = kernels::Store::overwrite;
    View2<S const> const in = qkv, y = out, dy = d;
    View2<S> const gradients = dqkv;
    bench::Case forward{[&] {
      kernels::attention_forward<S>(e, shape, {}, scratch_in(memory), kernels::heads_of(in),
                                    kernels::heads_of(in, keys), kernels::heads_of(in, values), all,
                                    kernels::heads_of(View2<S>(out)), lse);
      device::fence(e, "p3d::bench::attention");
    }};
    bench::Case backward{[&] {
      kernels::attention_backward<S>(e, shape, {}, scratch_in(memory), kernels::heads_of(in),
                                     kernels::heads_of(in, keys), kernels::heads_of(in, values), kernels::heads_of(dy),
                                     lse, View1<F const>(delta), all, kernels::heads_of(gradients), all,
                                     kernels::heads_of(gradients, keys), kernels::heads_of(gradients, values),
                                     {kernels::heads_of(y), delta});
      device::fence(e, "p3d::bench::attention");
    }};
    auto const square = [](std::int64_t length) {
      return static_cast<double>(length) * static_cast<double>(length + 1) / 2;
    };
    double const seen =
        x.document > 0 ? static_cast<double>(x.seq_len / x.document) * square(x.document)
        : x.window > 0 ? static_cast<double>(x.window) * static_cast<double>(x.seq_len - x.window) + square(x.window)
                       : square(x.seq_len);
    double const flops = 2.0 * seen * static_cast<double>(shape.samples * (keys + out_width));
    enum class By { gemms, library, library_with_atomics };
    for (auto by : {By::gemms, By::library, By::library_with_atomics}) {
      if (by != By::gemms && name.empty()) continue;
      kernels::use_fused_attention(by != By::gemms, by != By::library_with_atomics);
      forward.seconds.clear(), backward.seconds.clear();
      auto const before = kernels::fused_attention_calls();
      forward.work(), backward.work();
      auto const taken = kernels::fused_attention_calls() - before;
      bench::time_in_turn({&forward, &backward}, 3);
      fmt::print("{},{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.1f},{:.1f},{},{:.0f}\n",
                 by == By::gemms     ? "gemms"
                 : by == By::library ? "library"
                                     : "library with atomics",
                 x.seq_len, x.heads, x.kv_heads, x.dim, shape.values(), x.window, x.document, x.softcap, shape.samples,
                 forward.best() * 1e3, backward.best() * 1e3, flops / forward.best() * 1e-12,
                 2.5 * flops / backward.best() * 1e-12, taken, static_cast<double>(memory.extent(0)) / 1048576.0);
      std::fflush(stdout);
      if (taken < 2 && by != By::gemms) fmt::print("# refused: {}\n", kernels::fused_attention_refusal());
    }
    kernels::use_fused_attention(false);
  }
  kernels::reserve_fused_workspace(0);
}

/// A sliding window against all keys.
void window(std::int64_t n, std::int64_t window) {
  constexpr std::int64_t heads = 2, dim = 64, h = heads * dim;
  device::ExecSpace const e;
  auto const qkv = matrix(n, 3 * h), dqkv = matrix(n, 3 * h), out = matrix(n, h), d = matrix(n, h);
  auto const delta = vector(n * heads), lse = vector(n * heads);
  auto const both = [&](std::int64_t seen) {
    auto const shape = self_attention(n, heads, dim, seen);
    auto const memory = scratch_memory<F>(shape);
    attend<F>(e, shape, qkv, out, lse, scratch_in(memory));
    attend_backward<F>(e, shape, qkv, out, lse, d, delta, dqkv, scratch_in(memory));
    device::fence(e, "p3d::bench::attention");
  };
  bench::Case full{[&] { both(0); }}, windowed{[&] { both(window); }};
  bench::time_in_turn({&full, &windowed}, 3);
  fmt::print("tokens,window,full_ms,window_ms,speedup\n{},{},{:.1f},{:.1f},{:.2f}\n", n, window, full.best() * 1e3,
             windowed.best() * 1e3, full.best() / windowed.best());
}

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  std::string const mode = argc > 1 && argv[1][0] == '-' ? argv[1] : "";
  std::vector<std::int64_t> given;
  for (int i = mode.empty() ? 1 : 2; i < argc; ++i) given.push_back(std::stoll(argv[i]));
  Sizes sizes = {1024, 768, 3072, 50257, 12};
  for (std::size_t i = 0; i < std::min(given.size(), sizes.size()); ++i)
    if (given[i] != 0) sizes[i] = given[i];
  bench::print_stamp(setup.world, mode == "--attention" ? "p3d attention"
                                  : mode == "--window"  ? "p3d window"
                                                        : "p3d kernels");
  if (mode == "--attention") {
    attention(given.empty() ? std::vector<std::int64_t>{1024, 2048, 4096, 8192} : given);
  } else if (mode == "--window") {
    given.resize(2);
    window(given[0] > 0 ? given[0] : 32768, given[1] > 0 ? given[1] : 1024);
  } else if (mode == "--attention-bf16") {
    attention_both(given.empty() ? 16384 : given[0]);
  } else if (mode == "--roof-bf16") {
    auto rows = all_kernels<device::bfloat16>(sizes);
    report<device::bfloat16>(rows, 9);
  } else if (mode == "--bf16") {
    compare<device::bfloat16>(sizes);
  } else if (mode == "--fp16") {
    compare<device::float16>(sizes);
  } else {
    auto rows = all_kernels<F>(sizes);
    report<F>(rows, 9);
  }
}
