// SPDX-License-Identifier: Apache-2.0
// GEMMs of 16-bit matrices beside those of float, in turn: the matrices of a transformer's layer and of its logits.
// `ratio`: to the time of float.
//
//   bench_gemm16 [tokens hidden ffn vocabulary] > gemm16.csv        (default 1024 768 3072 50257: GPT-2 124M)

#include "bench.hpp"

#include <linalg/gemm16.hpp>

namespace {

using namespace p3d;
using device::bfloat16;
using device::float16;
using device::Owned2;
using device::View2;
using linalg::Op;
using linalg::detail::HostMethod;

template <class T>
Owned2<T> matrix(std::int64_t rows, std::int64_t cols) {
  Owned2<T> const m(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::bench::matrix"), rows, cols);
  device::prefer_large_pages(m.data(), m.span() * sizeof(T));
  Kokkos::parallel_for(
      "p3d::bench::fill", Kokkos::RangePolicy<device::ExecSpace, Kokkos::IndexType<std::int64_t>>(0, rows),
      KOKKOS_LAMBDA(std::int64_t i) {
        for (std::int64_t j = 0; j < cols; ++j)
          m(i, j) = static_cast<T>(static_cast<float>((i * 31 + j * 17) % 101 - 50) / 64.0F);
      });
  return m;
}

/// Of a layer [outputs, inputs] on so many tokens: forward, gradient of the input, gradient of the weight.
struct Linear {
  std::string name;
  std::int64_t tokens, outputs, inputs;
};

template <class S, class Gradient>
struct Matrices {
  Owned2<S> x, w, y;
  Owned2<Gradient> dw;
  explicit Matrices(Linear const& l)
      : x(matrix<S>(l.tokens, l.inputs)),
        w(matrix<S>(l.outputs, l.inputs)),
        y(matrix<S>(l.tokens, l.outputs)),
        dw(matrix<Gradient>(l.outputs, l.inputs)) {}

  bench::Case forward(HostMethod by) const { return timed(by, Op::none, x, Op::transpose, w, 0.0F, y); }
  bench::Case input(HostMethod by) const { return timed(by, Op::none, y, Op::none, w, 0.0F, x); }
  bench::Case weight(HostMethod by) const { return timed(by, Op::transpose, y, Op::none, x, 1.0F, dw); }

private:
  template <class C>
  static bench::Case timed(HostMethod by, Op op_a, Owned2<S> const& a, Op op_b, Owned2<S> const& b, float beta,
                           Owned2<C> const& c) {
    return {[=] {
      linalg::detail::set_host_method(by);
      linalg::gemm<S>(device::ExecSpace(), op_a, op_b, 1.0F, View2<S const>(a), View2<S const>(b), beta, View2<C>(c));
      Kokkos::fence();
    }};
  }
};

void report(Linear const& l) {
  Matrices<float, float> const fp32(l);
  Matrices<bfloat16, float> const bf16(l);
  Matrices<float16, float> const fp16(l);
  double const flops =
      2.0 * static_cast<double>(l.tokens) * static_cast<double>(l.outputs) * static_cast<double>(l.inputs);
  auto const three = [&](char const* kind, bench::Case base, bench::Case best, bench::Case wide, bench::Case half) {
    bench::time_in_turn({&base, &best, &wide, &half}, 7);
    auto const rate = [&](bench::Case const& c) { return flops / c.best() * 1e-9; };
    auto const ratio = [&](bench::Case const& c) { return base.best() / c.best(); };
    fmt::print("{},{},{:.1f},{:.1f},{:.3f},{:.1f},{:.3f},{:.1f},{:.3f}\n", l.name, kind, rate(base), rate(best),
               ratio(best), rate(wide), ratio(wide), rate(half), ratio(half));
    std::fflush(stdout);
  };
  constexpr auto quickest = HostMethod::automatic, widened = HostMethod::widened;
  three("forward", fp32.forward(quickest), bf16.forward(quickest), bf16.forward(widened), fp16.forward(quickest));
  three("input gradient", fp32.input(quickest), bf16.input(quickest), bf16.input(widened), fp16.input(quickest));
  three("weight gradient", fp32.weight(quickest), bf16.weight(quickest), bf16.weight(widened), fp16.weight(quickest));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  std::int64_t sizes[] = {1024, 768, 3072, 50257};
  for (int i = 1; i < argc && i <= 4; ++i) sizes[i - 1] = std::stoll(argv[i]);
  auto const [tokens, hidden, ffn, vocabulary] = sizes;
  bench::print_stamp(setup.world, "p3d gemm16");
  fmt::print("# bf16: {}; fp16: {}\n", linalg::gemm_method<bfloat16>(), linalg::gemm_method<float16>());
  fmt::print("# {} tokens, hidden {}, ffn {}, vocabulary {}\n", tokens, hidden, ffn, vocabulary);
  fmt::print("layer,gemm,fp32 GFLOP/s,bf16 GFLOP/s,ratio,bf16 widened GFLOP/s,ratio,fp16 GFLOP/s,ratio\n");
  for (auto const& l : {Linear{"qkv", tokens, 3 * hidden, hidden}, Linear{"attention out", tokens, hidden, hidden},
                        Linear{"up", tokens, ffn, hidden}, Linear{"down", tokens, hidden, ffn},
                        Linear{"logits", tokens, vocabulary, hidden}})
    report(l);
}
