// SPDX-License-Identifier: Apache-2.0
// GEMMs of the experts of a mixture-of-experts layer beside one GEMM of the same FLOPs, in turn, fp32. `ratio`: of the
// rates, of the quickest rounds; `median`: of the medians.
//
//   bench_grouped_gemm [rounds hidden ffn experts...] > grouped_gemm.csv        (default 5 768 1536 8 64)

#include "bench.hpp"

#include <p3d/base/random.hpp>
#include <p3d/linalg/grouped_gemm.hpp>

namespace {

using namespace p3d;
using device::Owned2;
using device::View2;
using linalg::Op;
using Matrix = Owned2<float>;
using Offsets = std::vector<std::int64_t>;

Matrix matrix(std::int64_t rows, std::int64_t cols) {
  Matrix const m(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::bench::matrix"), rows, cols);
  device::prefer_large_pages(m.data(), m.span() * sizeof(float));
  Kokkos::deep_copy(m, 0.25F);
  return m;
}

/// The same number of rows for every expert, or each row to a random one.
Offsets offsets_of(std::int64_t experts, std::int64_t rows, bool balanced) {
  Offsets offsets(experts + 1, 0);
  auto const key = base::random_key(1, "experts");
  for (std::int64_t i = 0; i < experts * rows; ++i) {
    auto const e = balanced ? i / rows : base::random_word(key, 0, static_cast<std::uint64_t>(i)) % experts;
    ++offsets[e + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  return offsets;
}

void report(std::int64_t experts, std::int64_t rows, bool balanced, std::int64_t hidden, std::int64_t ffn, int rounds) {
  auto const all = experts * rows;
  auto const offsets = offsets_of(experts, rows, balanced);
  auto const x = matrix(all, hidden), y = matrix(all, ffn), w = matrix(experts * ffn, hidden);
  View2<float const> const rx = x, ry = y, rw = w, one(w.data(), ffn, hidden);
  View2<float> const wx = x, wy = y, ww = w, one_gradient(w.data(), ffn, hidden);
  device::ExecSpace const exec;
  double const flops = 2.0 * static_cast<double>(all) * static_cast<double>(hidden) * static_cast<double>(ffn);
  auto const pair = [&](char const* kind, std::function<void()> single, std::function<void()> grouped) {
    bench::Case a{[=] { single(), Kokkos::fence(); }}, b{[=] { grouped(), Kokkos::fence(); }};
    bench::time_in_turn({&a, &b}, rounds);
    fmt::print("{},{},{},{},{:.1f},{:.1f},{:.3f},{:.3f}\n", kind, experts, rows, balanced ? "balanced" : "random",
               flops / a.best() * 1e-9, flops / b.best() * 1e-9, a.best() / b.best(), a.mid() / b.mid());
    std::fflush(stdout);
  };
  // Gradients of weights are added to, as over microbatches; the small factor keeps them finite.
  pair(
      "forward", [=] { linalg::gemm<float>(exec, Op::none, Op::transpose, 1e-3F, rx, one, 0, wy); },
      [=] { linalg::grouped_gemm<float>(exec, Op::transpose, 1e-3F, rx, rw, 0, wy, offsets); });
  pair(
      "input gradient", [=] { linalg::gemm<float>(exec, Op::none, Op::none, 1e-3F, ry, one, 0, wx); },
      [=] { linalg::grouped_gemm<float>(exec, Op::none, 1e-3F, ry, rw, 0, wx, offsets); });
  pair(
      "weight gradient", [=] { linalg::gemm<float>(exec, Op::transpose, Op::none, 1e-6F, ry, rx, 1, one_gradient); },
      [=] { linalg::grouped_gemm_weight<float>(exec, 1e-6F, ry, rx, 1, ww, offsets); });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  std::vector<std::int64_t> sizes = {5, 768, 1536};
  for (int i = 1; i < argc; ++i)
    i <= 3 ? void(sizes[i - 1] = std::stoll(argv[i])) : sizes.push_back(std::stoll(argv[i]));
  if (sizes.size() == 3) sizes.insert(sizes.end(), {8, 64});
  bench::print_stamp(setup.world, "p3d grouped_gemm");
  fmt::print("# hidden {}, ffn {}\n", sizes[1], sizes[2]);
  fmt::print("gemm,experts,rows per expert,routing,one GEMM GFLOP/s,grouped GFLOP/s,ratio,median\n");
  for (std::size_t i = 3; i < sizes.size(); ++i)
    for (std::int64_t const rows : {128, 256, 512})
      for (bool const balanced : {true, false})
        report(sizes[i], rows, balanced, sizes[1], sizes[2], static_cast<int>(sizes[0]));
}
