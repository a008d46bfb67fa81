// SPDX-License-Identifier: Apache-2.0
// Biases of experts and of their router, against loops over the rows of each expert.

#include "support.hpp"

#include <p3d/kernels/expert_bias.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace expert_bias_test {

constexpr std::int64_t rows = 37, cols = 21, experts = 5;
/// Experts without rows stand at the beginning, in the middle and at the end.
std::vector<int> const offsets{0, 0, 11, 11, 37, 37};
std::int64_t expert_of(std::int64_t row) { return row < 11 ? 1 : 3; }

Vec const bias = random_values("bias", experts*cols), x = random_values("x", rows*cols),
          gates = random_values("gates", rows), dy = random_values("dy", rows*cols);

/// Columns of a wider matrix, as gate and up are.
template <class T>
struct Wide {
  static constexpr std::int64_t ahead = 3;
  Owned2<T> all;
  explicit Wide(Vec const& values) : all(matrix_of<T>(rows, cols + ahead, Vec(rows * (cols + ahead), 7.0))) {
    Kokkos::deep_copy(part(), matrix_of<T>(rows, cols, values));
  }
  View2<T> part() const { return p3d::device::columns(View2<T>(all), ahead, ahead + cols); }
  Vec found() const {
    auto const m = host(all);
    Vec out;
    for (std::int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(m[r * (cols + ahead)], 7.0);
      out.insert(out.end(), m.begin() + r * (cols + ahead) + ahead, m.begin() + (r + 1) * (cols + ahead));
    }
    return out;
  }
};

template <class T>
void check(double tolerance) {
  using A = Acc<T>;
  auto const at = ints_of(offsets);
  auto const b = matrix_of<T>(experts, cols, bias);
  auto const g = vector_of<A>(gates);
  for (bool const gated : {false, true}) {
    Wide<T> const m(x), d(dy);
    View1<A const> const weights = gated ? View1<A const>(g) : View1<A const>();
    kernels::add_expert_bias<T>(ExecSpace(), at, View2<T const>(b), weights, m.part());
    auto const grad = matrix_of<A>(experts, cols, bias);
    kernels::add_expert_bias_backward<T>(ExecSpace(), at, View2<T const>(d.part()), weights, View2<A>(grad));
    Vec expected = x, sums = bias;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        double const gate = gated ? gates[r] : 1.0;
        expected[r * cols + c] += gate * bias[expert_of(r) * cols + c];
        sums[expert_of(r) * cols + c] += gate * dy[r * cols + c];
      }
    expect_close(m.found(), expected, tolerance, "forward");
    expect_close(host(grad), sums, tolerance, "backward");
  }
  auto const d_gates = vector_of<A>(gates);
  kernels::add_bias_gates_backward<T>(ExecSpace(), at, View2<T const>(b), View2<T const>(matrix_of<T>(rows, cols, dy)),
                                      View1<A>(d_gates));
  Vec expected = gates;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) expected[r] += dy[r * cols + c] * bias[expert_of(r) * cols + c];
  expect_close(host(d_gates), expected, tolerance, "gates");
}

TEST(ExpertBias, EveryRowGetsThatOfItsExpert) {
  check<double>(1e-13);
  check<float>(1e-5);
  check<bfloat16>(0.03);
  check<float16>(0.004);
}

template <class T>
void check_router(double tolerance) {
  auto const logits = matrix_of<Acc<T>>(rows, cols, x);
  Vec const one(bias.begin(), bias.begin() + cols);
  auto const b = vector_of<T>(one);
  kernels::add_router_bias<T>(ExecSpace(), View1<T const>(b), View2<Acc<T>>(logits));
  auto const grad = vector_of<Acc<T>>(one);
  kernels::add_router_bias_backward<Acc<T>>(ExecSpace(), View2<Acc<T> const>(matrix_of<Acc<T>>(rows, cols, dy)),
                                            View1<Acc<T>>(grad));
  Vec expected = x, sums = one;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      expected[r * cols + c] += bias[c];
      sums[c] += dy[r * cols + c];
    }
  expect_close(host(logits), expected, tolerance, "logits");
  expect_close(host(grad), sums, 1e-5, "gradient");
}
TEST(ExpertBias, LogitsGetThatOfTheRouter) {
  check_router<double>(1e-13);
  check_router<float>(1e-6);
  check_router<bfloat16>(0.01);
}

}  // namespace expert_bias_test
