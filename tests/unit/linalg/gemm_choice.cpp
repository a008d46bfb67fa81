// SPDX-License-Identifier: Apache-2.0
// Both libraries of fp32 GEMMs on the host: results, what chooses between them, and that oneDNN makes no threads.

#include <p3d/base/random.hpp>
#include <p3d/base/symbol.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/linalg/gemm_choice.hpp>
#include <p3d/linalg/host_blas.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace {

using namespace p3d;
using linalg::GemmChoice;
using linalg::HostLibrary;
using linalg::Op;

bool has_onednn() { return !linalg::onednn_version().empty(); }

std::vector<HostLibrary> libraries() {
  if (!has_onednn()) return {HostLibrary::blas};
  return {HostLibrary::blas, HostLibrary::onednn};
}

/// A choice while it lives.
struct Chosen {
  explicit Chosen(GemmChoice choice) { linalg::set_gemm_choice(std::move(choice)); }
  ~Chosen() { linalg::set_gemm_choice(GemmChoice()); }
};

std::vector<float> random(std::string_view name, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  auto const key = base::random_key(5, name);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(base::random_normal(key, 0, i));
  return out;
}

/// op_a(A) [m, k] times op_b(B) [k, n] of random numbers; rows of all three are `margin` longer than they must be.
struct Problem {
  Op op_a, op_b;
  std::int64_t m, n, k, margin = 0;
  std::int64_t lda = (op_a == Op::none ? k : m) + margin, ldb = (op_b == Op::none ? n : k) + margin, ldc = n + margin;
  std::vector<float> a = random("a", (op_a == Op::none ? m : k) * lda),
                     b = random("b", (op_b == Op::none ? k : n) * ldb), c = random("c", m*ldc);

  std::vector<float> solve(HostLibrary library, float alpha, float beta) const {
    auto out = c;
    linalg::host_gemm<float>(library, op_a, op_b, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, out.data(), ldc);
    return out;
  }
  /// By linalg::gemm, as gemm_choice() says.
  std::vector<float> solve_as_chosen() const {
    auto out = c;
    device::View2<float const> const x(a.data(), op_a == Op::none ? m : k, lda),
        y(b.data(), op_b == Op::none ? k : n, ldb);
    linalg::gemm<float>({}, op_a, op_b, 1.0F, x, y, 1.0F, device::View2<float>(out.data(), m, n));
    Kokkos::fence();
    return out;
  }
};

/// The bound of gemm.hpp for fp32, with a plain triple loop in double.
void check(Problem const& p, HostLibrary library, float alpha, float beta) {
  SCOPED_TRACE(std::string("op ") + static_cast<char>(p.op_a) + static_cast<char>(p.op_b) + " m " +
               std::to_string(p.m) + " n " + std::to_string(p.n) + " k " + std::to_string(p.k) + " margin " +
               std::to_string(p.margin) + (library == HostLibrary::blas ? " BLAS" : " oneDNN"));
  auto const found = p.solve(library, alpha, beta);
  double const u = std::ldexp(1.0, -24);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.ldc; ++j) {
      auto const at = static_cast<std::size_t>(i * p.ldc + j);
      if (j >= p.n) {
        ASSERT_EQ(found[at], p.c[at]) << "wrote beside C, row " << i << " column " << j;
        continue;
      }
      double sum = 0.0, size = 0.0;
      for (std::int64_t l = 0; l < p.k; ++l) {
        auto const x = p.a[static_cast<std::size_t>(p.op_a == Op::none ? i * p.lda + l : l * p.lda + i)];
        auto const y = p.b[static_cast<std::size_t>(p.op_b == Op::none ? l * p.ldb + j : j * p.ldb + l)];
        sum += static_cast<double>(x) * y;
        size += std::abs(static_cast<double>(x) * y);
      }
      double const expected = alpha * sum + static_cast<double>(beta) * p.c[at];
      double const bound = static_cast<double>(p.k + 2) * u * (std::abs(alpha) * size + std::abs(beta * p.c[at])) +
                           u * std::abs(expected);
      ASSERT_NEAR(found[at], expected, bound) << "row " << i << " column " << j;
    }
}

TEST(HostGemm, BothLibrariesMatchThreeLoops) {
  std::vector<std::tuple<int, int, int>> const sizes{{1, 7, 5},    {7, 1, 5},      {5, 7, 1},    {16, 16, 16},
                                                     {33, 17, 65}, {131, 190, 70}, {70, 48, 513}};
  for (auto library : libraries())
    for (Op op_a : {Op::none, Op::transpose})
      for (Op op_b : {Op::none, Op::transpose})
        for (std::int64_t margin : {0, 3})
          for (auto [m, n, k] : sizes) {
            Problem const p{op_a, op_b, m, n, k, margin};
            check(p, library, 1.0F, 0.0F);
            check(p, library, 1.0F, 1.0F);
            check(p, library, -0.5F, 0.25F);
          }
}

TEST(HostGemm, BetaZeroOverwritesNan) {
  for (auto library : libraries())
    for (Op op_a : {Op::none, Op::transpose})
      for (std::int64_t m : {3, 40, 300}) {
        Problem p{op_a, Op::transpose, m, 50, 33};
        p.c.assign(p.c.size(), std::numeric_limits<float>::quiet_NaN());
        for (float x : p.solve(library, 1.0F, 0.0F)) ASSERT_TRUE(std::isfinite(x));
      }
}

// Replicas keep their operands at other addresses, and must get the same bits.
TEST(HostGemm, BitsDoNotDependOnWhereOperandsLie) {
  for (auto library : libraries())
    for (auto [op_a, op_b] : {std::pair{Op::none, Op::transpose}, {Op::none, Op::none}, {Op::transpose, Op::none}})
      for (std::int64_t size : {48, 200, 384}) {
        Problem const p{op_a, op_b, size, 2 * size, size + 8};
        auto const expected = p.solve(library, 1.0F, 1.0F);
        for (std::size_t shift : {1U, 5U}) {
          auto const moved = [shift](std::vector<float> const& x) {
            std::vector<float> out(shift);
            out.insert(out.end(), x.begin(), x.end());
            return out;
          };
          auto const a = moved(p.a), b = moved(p.b);
          auto c = moved(p.c);
          linalg::host_gemm<float>(library, op_a, op_b, p.m, p.n, p.k, 1.0F, a.data() + shift, p.lda, b.data() + shift,
                                   p.ldb, 1.0F, c.data() + shift, p.ldc);
          EXPECT_EQ(std::vector<float>(c.begin() + static_cast<std::ptrdiff_t>(shift), c.end()), expected)
              << "size " << size << " shift " << shift;
        }
      }
}

struct Stack {
  char const* begin;
  char const* end;
};

Stack stack_of_this_thread() {
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void* begin = nullptr;
  std::size_t bytes = 0;
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  return {static_cast<char const*>(begin), static_cast<char const*>(begin) + bytes};
}

Stack this_stack{};
std::atomic<int> signals_taken = 0, off_the_stack = 0;

void take_signal(int) {
  // Not the address of a variable: with the address sanitizer these lie elsewhere.
  auto const* const here = static_cast<char const*>(__builtin_frame_address(0));
  if (here < this_stack.begin || here >= this_stack.end) ++off_the_stack;
  ++signals_taken;
}

// oneDNN's kernels for K > 84 put the stack pointer on the heap: a signal would overwrite what lies below.
TEST(HostGemm, SignalsLandOnTheStack) {
  constexpr int enough = 100;
  this_stack = stack_of_this_thread();
  auto const old = std::signal(SIGUSR2, take_signal);
  for (auto library : libraries()) {
    Problem const p{Op::none, Op::transpose, 200, 200, 600};
    auto const quiet = p.solve(library, 1.0F, 0.0F);
    signals_taken = off_the_stack = 0;
    std::atomic<bool> stop = false;
    std::thread sender([&stop, target = pthread_self()] {
      while (!stop) {
        pthread_kill(target, SIGUSR2);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    bool same = true;
    while (signals_taken < enough) same = p.solve(library, 1.0F, 0.0F) == quiet && same;
    stop = true;
    sender.join();
    EXPECT_TRUE(same);
    EXPECT_EQ(off_the_stack, 0) << "of " << signals_taken << (library == HostLibrary::blas ? ", BLAS" : ", oneDNN");
  }
  std::signal(SIGUSR2, old);
}

TEST(HostGemm, OneRowIsTheBlas) {
  Problem const p{Op::none, Op::transpose, 1, 300, 1000};
  for (auto library : libraries()) EXPECT_EQ(p.solve(library, 1.0F, 1.0F), p.solve(HostLibrary::blas, 1.0F, 1.0F));
}

TEST(GemmChoice, GoesByLayerAndNotByTokens) {
  GemmChoice choice;
  EXPECT_EQ(choice.of(Op::none, Op::transpose, 5, 30, 20), HostLibrary::blas);
  choice.set(Op::none, Op::transpose, 5, 30, 20, HostLibrary::onednn);
  EXPECT_EQ(choice.of(Op::none, Op::transpose, 9, 30, 20), HostLibrary::onednn);  // other tokens
  EXPECT_EQ(choice.of(Op::none, Op::transpose, 5, 20, 30), HostLibrary::blas);    // another layer
  EXPECT_EQ(choice.of(Op::none, Op::none, 5, 30, 20), HostLibrary::blas);         // its input gradient
  choice.set(Op::transpose, Op::none, 30, 20, 5, HostLibrary::onednn);
  EXPECT_EQ(choice.of(Op::transpose, Op::none, 30, 20, 9), HostLibrary::onednn);
  EXPECT_EQ(choice.shapes(HostLibrary::onednn), 2);
  choice.set(Op::none, Op::transpose, 7, 30, 20, HostLibrary::blas);
  EXPECT_EQ(choice.of(Op::none, Op::transpose, 5, 30, 20), HostLibrary::blas);
  EXPECT_EQ(choice.shapes(), 2);
  EXPECT_EQ(choice.shapes(HostLibrary::onednn), 1);
  EXPECT_EQ(GemmChoice(HostLibrary::onednn).of(Op::none, Op::none, 2, 2, 2), HostLibrary::onednn);
}

// The libraries add up in different orders: bits tell which one it was.
TEST(GemmChoice, DecidesWhoMultiplies) {
  if (!has_onednn()) {
    test::expect_error([] { linalg::set_gemm_choice(GemmChoice(HostLibrary::onednn)); }, "this build has none");
    return;
  }
  Problem const p{Op::none, Op::transpose, 200, 300, 1000};
  auto const solve = [&](GemmChoice const& choice) {
    Chosen const chosen(choice);
    return p.solve_as_chosen();
  };
  auto const blas = solve(GemmChoice(HostLibrary::blas)), onednn = solve(GemmChoice(HostLibrary::onednn));
  if (blas == onednn) GTEST_SKIP() << "both libraries give the same bits here";
  GemmChoice this_shape(HostLibrary::blas), all_but_this(HostLibrary::onednn);
  this_shape.set(p.op_a, p.op_b, p.m, p.n, p.k, HostLibrary::onednn);
  all_but_this.set(p.op_a, p.op_b, p.m, p.n, p.k, HostLibrary::blas);
  EXPECT_EQ(solve(this_shape), onednn);
  EXPECT_EQ(solve(all_but_this), blas);
  Chosen const chosen{all_but_this};  // what is no linear layer's goes by the others
  auto out = p.c;
  linalg::host_gemm<float>(p.op_a, p.op_b, p.m, p.n, p.k, 1.0F, p.a.data(), p.lda, p.b.data(), p.ldb, 1.0F, out.data(),
                           p.ldc);
  EXPECT_EQ(out, p.solve(HostLibrary::onednn, 1.0F, 1.0F));
}

TEST(GemmChoice, OnednnMakesNoThreads) {
  auto* const set = base::find_symbol<void(int)>("omp_set_num_threads");
  auto* const get = base::find_symbol<int()>("omp_get_max_threads");
  if (!has_onednn() || set == nullptr || get == nullptr) GTEST_SKIP() << "no oneDNN with OpenMP";
  auto const threads = [] {
    std::filesystem::directory_iterator const tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  int const before = get();
  set(4);
  auto const those_before = threads();
  Problem const p{Op::none, Op::transpose, 512, 512, 512};
  p.solve(HostLibrary::onednn, 1.0F, 0.0F);
  EXPECT_EQ(threads(), those_before);
  EXPECT_EQ(get(), 4) << "the number is given back";
  set(before);
}

}  // namespace
