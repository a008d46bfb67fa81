// SPDX-License-Identifier: Apache-2.0
// Batches of GEMMs against loops in double: every form and type, matrices between others' rows, shared ones, empty
// sizes.

#include <p3d/base/random.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/linalg/batched_gemm.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using device::ExecSpace;
using device::Owned1;
using linalg::BatchedMatrix;
using linalg::BatchedShape;
using linalg::Op;

/// Memory of so many elements, filled with numbers of T.
template <class T>
Owned1<T> filled(std::string_view name, std::int64_t n) {
  Owned1<T> d("p3d::test::batch", n);
  auto const h = device::host_mirror(d);
  auto const key = base::random_key(9, name);
  for (std::size_t i = 0; i < h.size(); ++i) h(i) = static_cast<T>(static_cast<float>(base::random_normal(key, 0, i)));
  Kokkos::deep_copy(d, h);
  return d;
}
template <class T>
std::vector<double> values(Owned1<T> const& d) {
  Kokkos::fence();
  auto const h = device::host_copy(d);
  std::vector<double> out;
  for (std::size_t i = 0; i < h.size(); ++i) out.push_back(static_cast<double>(h(i)));
  return out;
}

/// Where the matrices of a batch lie.
struct Place {
  std::int64_t ld, stride;
};

template <class S, class C>
void check(Op op_a, Op op_b, BatchedShape const& s, Place a, Place b, Place c, double alpha, double beta) {
  using T = device::accumulate_t<S>;
  SCOPED_TRACE(std::string("op ") + static_cast<char>(op_a) + static_cast<char>(op_b) + " beta " +
               std::to_string(beta) + " bytes " + std::to_string(sizeof(S)) + std::to_string(sizeof(C)));
  std::int64_t const size = 4000;
  auto const ma = filled<S>("a", size), mb = filled<S>("b", size);
  auto const mc = filled<C>("c", size);
  if (beta == 0.0) Kokkos::deep_copy(mc, static_cast<C>(std::nan("")));
  auto const va = values(ma), vb = values(mb), before = values(mc);
  linalg::batched_gemm<S, C>(ExecSpace(), op_a, op_b, s, static_cast<T>(alpha), {ma.data(), a.ld, a.stride},
                             {mb.data(), b.ld, b.stride}, static_cast<T>(beta), {mc.data(), c.ld, c.stride});
  auto const found = values(mc);
  auto expected = before, bound = std::vector<double>(before.size(), 0.0);
  double const u = std::numeric_limits<T>::epsilon(), r = sizeof(C) == 2 ? 0x1p-8 : u;
  for (std::int64_t g = 0; g < s.batch; ++g)
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j) {
        double sum = 0, all = 0;
        for (std::int64_t l = 0; l < s.k; ++l) {
          double const term = va[g * a.stride + (op_a == Op::none ? i * a.ld + l : l * a.ld + i)] *
                              vb[g * b.stride + (op_b == Op::none ? l * b.ld + j : j * b.ld + l)];
          sum += term;
          all += std::abs(term);
        }
        auto const at = g * c.stride + i * c.ld + j;
        expected[at] = alpha * sum + (beta == 0.0 ? 0.0 : beta * before[at]);
        bound[at] = static_cast<double>(s.k + 2) * u * (std::abs(alpha) * all + std::abs(expected[at])) +
                    r * std::abs(expected[at]);
      }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(expected[i]))
      ASSERT_TRUE(std::isnan(found[i])) << "element " << i << " is no matrix's";
    else
      ASSERT_NEAR(found[i], expected[i], bound[i]) << "element " << i;
  }
}

template <class S, class C>
void check_batches() {
  for (Op op_a : {Op::none, Op::transpose})
    for (Op op_b : {Op::none, Op::transpose})
      for (double beta : {0.0, 1.0, -0.5}) {
        BatchedShape const s{3, 7, 5, 11};
        bool const na = op_a == Op::none, nb = op_b == Op::none;
        // One behind the other; as heads in the rows of a wider matrix; one A for all.
        check<S, C>(op_a, op_b, s, {na ? 11 : 7, 77}, {nb ? 5 : 11, 55}, {5, 35}, 1.0, beta);
        check<S, C>(op_a, op_b, s, {40, 13}, {50, 12}, {17, 6}, 0.25, beta);
        check<S, C>(op_a, op_b, s, {40, 0}, {50, 12}, {8, 60}, 1.0, beta);
      }
  for (double beta : {0.0, 0.5}) {
    check<S, C>(Op::none, Op::none, {2, 3, 4, 0}, {0, 0}, {4, 0}, {4, 12}, 1.0, beta);
    check<S, C>(Op::none, Op::transpose, {2, 1, 4, 6}, {6, 6}, {6, 24}, {4, 4}, 1.0, beta);
    check<S, C>(Op::none, Op::none, {2, 3, 1, 6}, {6, 18}, {2, 12}, {3, 9}, 1.0, beta);
  }
  for (BatchedShape const& s : {BatchedShape{0, 3, 4, 5}, {2, 0, 4, 5}, {2, 3, 0, 5}})
    check<S, C>(Op::none, Op::none, s, {5, 15}, {4, 20}, {4, 12}, 1.0, 0.0);
}

TEST(BatchedGemm, IsOneGemmAfterTheOther) {
  check_batches<double, double>();
  check_batches<float, float>();
  check_batches<device::bfloat16, device::bfloat16>();
  check_batches<device::bfloat16, float>();
  check_batches<device::float16, device::float16>();
  check_batches<device::float16, float>();
}

TEST(BatchedGemm, OnlyNvidiasGpusMultiplyInTf32) {
  bool const nvidia = !device::host_reaches_views && std::string(ExecSpace::name()) == "Cuda";
  EXPECT_EQ(linalg::round_operands(linalg::Operands::tf32), nvidia);
  EXPECT_TRUE(linalg::round_operands(linalg::Operands::fp32));
}

TEST(BatchedGemm, RowsThatOverlapAreRefused) {
  auto const m = filled<double>("m", 100);
  test::expect_error(
      [&] {
        linalg::batched_gemm<double, double>(ExecSpace(), Op::none, Op::none, {1, 3, 3, 3}, 1.0, {m.data(), 2, 0},
                                             {m.data(), 3, 0}, 0.0, {m.data() + 50, 3, 0});
      },
      "the rows of matrices of a batch do not overlap");
}

}  // namespace
