// SPDX-License-Identifier: Apache-2.0
// xIELU: against its formula as written, and all three gradients against finite differences.

#include "support.hpp"

#include <p3d/kernels/xielu.hpp>

#include <algorithm>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace xielu_test {

constexpr std::int64_t rows = 9, cols = 131;  // more than one chunk of columns

double softplus(double v) { return std::log1p(std::exp(v)); }
double formula(double x, Vec const& slopes) {
  if (x > 0) return softplus(slopes[0]) * x * x + 0.5 * x;
  return (0.5 + softplus(slopes[1])) * (std::expm1(std::min(x, -1e-6)) - x) + 0.5 * x;
}

Vec const slopes = {0.3, -1.1}, bias = random_values("xielu bias", cols), dy = random_values("xielu dy", rows*cols);

/// Numbers that are not near 0, with and without the bias: there the derivative has a step.
Vec numbers() {
  auto out = random_values("xielu x", rows * cols, 2.0);
  for (std::size_t i = 0; i < out.size(); ++i)
    while (std::abs(out[i]) < 1e-3 || std::abs(out[i] + bias[i % cols]) < 1e-3) out[i] += 0.01;
  return out;
}
Vec const x = numbers();

template <class T>
Vec forward(Vec const& in, Vec const& by, Vec const& add) {
  auto const m = matrix_of<T>(rows, cols, in);
  kernels::xielu_forward<T>(ExecSpace(), m, vector_of<T>(by), m, vector_of<T>(add));  // in place
  return host(m);
}
struct Gradients {
  Vec x, slopes;
};
template <class T, class G = kernels::Acc<T>>
Gradients backward(Vec const& in, Vec const& by, Vec const& add, Vec const& d, Vec const& before = {0.0, 0.0}) {
  auto const m = matrix_of<T>(rows, cols, in), g = matrix_of<T>(rows, cols, d);
  auto const sum = vector_of<G>(before);
  kernels::ColumnSums<T, G> sums;
  kernels::xielu_backward<T, G>(ExecSpace(), m, vector_of<T>(by), g, g, vector_of<T>(add), sum, sums);  // in place
  sums.finish(ExecSpace());
  return {host(g), host(sum)};
}

TEST(Xielu, ForwardMatchesTheFormula) {
  for (auto const& add : {Vec{}, bias}) {
    Vec expected;
    for (std::int64_t i = 0; i < rows * cols; ++i)
      expected.push_back(formula(x[i] + (add.empty() ? 0.0 : add[i % cols]), slopes));
    expect_close(forward<double>(x, slopes, add), expected, 1e-14);
    expect_close(forward<float>(x, slopes, add), expected, 1e-6);
  }
}

TEST(Xielu, BackwardMatchesFiniteDifferences) {
  for (auto const& add : {Vec{}, bias}) {
    auto const g = backward<double>(x, slopes, add, dy);
    expect_gradient([&](Vec const& v) { return dot(forward<double>(v, slopes, add), dy); }, x, g.x, "dx");
    expect_gradient([&](Vec const& v) { return dot(forward<double>(x, v, add), dy); }, slopes, g.slopes, "slopes");
    auto const single = backward<float>(x, slopes, add, dy);
    expect_close(single.x, g.x, 1e-6);
    expect_close(single.slopes, g.slopes, 1e-5);
  }
}

TEST(Xielu, GradientsOfSlopesAddUp) {
  auto const once = backward<double>(x, slopes, bias, dy), twice = backward<double>(x, slopes, bias, dy, once.slopes);
  for (int i = 0; i < 2; ++i) EXPECT_DOUBLE_EQ(twice.slopes[i], 2 * once.slopes[i]);
  EXPECT_EQ(once.slopes, backward<double>(x, slopes, bias, dy).slopes) << "every repetition has the same bits";
}

/// Near 0 exp(x) - 1 - x is a small difference of larger numbers, and between eps and 0 the exponential is constant.
template <class T>
void check_small_and_far_numbers(double tolerance) {
  Vec in(rows * cols, 1.0);
  Vec const special = {-1e4,  -300.0, -90.0, -0.2501, -0.2499, -1e-2, -1e-4, -1e-5, -2e-6,
                       -9e-7, -1e-9,  -0.0,  0.0,     1e-9,    1e-4,  1.0,   300.0, std::nan("")};
  std::copy(special.begin(), special.end(), in.begin());
  in = rounded<T>(in);
  auto const y = forward<T>(in, slopes, {}), d = backward<T>(in, slopes, {}, Vec(rows * cols, 1.0)).x;
  double const p = softplus(slopes[0]), n = 0.5 + softplus(slopes[1]);
  for (std::size_t i = 0; i + 1 < special.size(); ++i) {
    double const v = in[i], expected = formula(v, slopes);
    EXPECT_NEAR(y[i], expected, tolerance * std::max(std::fabs(expected), 1e-9)) << v;
    double const slope = 0.5 + (v > 0 ? 2 * p * v : n * (v < -1e-6 ? std::expm1(v) : -1.0));
    EXPECT_NEAR(d[i], slope, tolerance * std::max(std::fabs(slope), 0.1)) << v;
  }
  EXPECT_TRUE(std::isnan(y[special.size() - 1]));
}
TEST(Xielu, SmallAndFarNumbersKeepTheirDigits) {
  check_small_and_far_numbers<double>(1e-13);
  check_small_and_far_numbers<float>(2e-6);
}

TEST(Xielu, FarSlopesStayFinite) {
  Vec const far = {40.0, -40.0};
  Vec const ones(rows * cols, 1.0);
  EXPECT_NEAR(forward<double>(ones, far, {})[0], 40.5, 1e-12);
  EXPECT_NEAR(forward<float>(Vec(rows * cols, -1.0), far, {})[0], 0.5 * std::expm1(-1.0), 1e-6);
  auto const g = backward<double>(ones, far, {}, ones).slopes;
  EXPECT_NEAR(g[0], rows * cols, 1e-9);
  EXPECT_EQ(g[1], 0.0);
}

template <class S>
void check_16_bits() {
  auto const v = rounded<S>(x), by = rounded<S>(slopes), add = rounded<S>(bias), d = rounded<S>(dy);
  expect_rounded<S>(forward<S>(v, by, add), forward<double>(v, by, add), "forward");
  auto const narrow = backward<S>(v, by, add, d), wide = backward<double>(v, by, add, d);
  expect_rounded<S>(narrow.x, wide.x, "backward");
  expect_close(narrow.slopes, wide.slopes, 1e-5);
}
TEST(Xielu, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>();
  check_16_bits<float16>();
  auto const v = rounded<bfloat16>(x), by = rounded<bfloat16>(slopes), d = rounded<bfloat16>(dy);
  expect_rounded<bfloat16>(backward<bfloat16, bfloat16>(v, by, {}, d).slopes, backward<double>(v, by, {}, d).slopes,
                           "slopes in 16 bits");
}

TEST(Xielu, NoRowsGiveNothing) {
  Owned2<double> const none("p3d::test::none", 0, cols);
  auto const sum = vector_of<double>({1.0, 2.0});
  kernels::ColumnSums<double> sums;
  kernels::xielu_backward<double>(ExecSpace(), none, vector_of<double>(slopes), none, none, {}, sum, sums);
  sums.finish(ExecSpace());
  EXPECT_EQ(host(sum), (Vec{1.0, 2.0}));
}

}  // namespace xielu_test
