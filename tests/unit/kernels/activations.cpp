// SPDX-License-Identifier: Apache-2.0
// GELU and SwiGLU: against their formulas as written, and against finite differences.

#include "support.hpp"

#include <p3d/kernels/elementwise.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace activations_test {

constexpr std::int64_t rows = 3, cols = 131;  // more than one chunk of columns

double gelu(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
double silu(double x) { return x / (1.0 + std::exp(-x)); }

template <class T>
Vec gelu_forward(Vec const& x) {
  auto const in = matrix_of<T>(rows, cols, x);
  Owned2<T> const y("p3d::test::y", rows, cols);
  kernels::gelu_forward<T>(ExecSpace(), in, y);
  return host(y);
}
template <class T>
Vec gelu_backward(Vec const& x, Vec const& dy) {
  auto const in = matrix_of<T>(rows, cols, x), g = matrix_of<T>(rows, cols, dy);
  kernels::gelu_backward<T>(ExecSpace(), in, g, g);  // in place
  return host(g);
}
/// Calls of functions with a gate.
template <class T>
using GatedForward = void (*)(ExecSpace const&, View2<T const>, View2<T>, View1<T const>);
template <class T>
using GatedBackward = void (*)(ExecSpace const&, View2<T const>, View2<T const>, View2<T>, View1<T const>);
template <class T>
Vec gated(GatedForward<T> function, Vec const& x) {
  auto const in = matrix_of<T>(rows, 2 * cols, x);
  Owned2<T> const y("p3d::test::y", rows, cols);
  function(ExecSpace(), in, y, {});
  return host(y);
}
template <class T>
Vec gated(GatedBackward<T> function, Vec const& x, Vec const& dy) {
  auto const in = matrix_of<T>(rows, 2 * cols, x), g = matrix_of<T>(rows, cols, dy);
  Owned2<T> const d("p3d::test::d", rows, 2 * cols);
  function(ExecSpace(), in, g, d, {});
  return host(d);
}
template <class T>
Vec swiglu_forward(Vec const& x) {
  return gated<T>(kernels::swiglu_forward<T>, x);
}
template <class T>
Vec swiglu_backward(Vec const& x, Vec const& dy) {
  return gated<T>(kernels::swiglu_backward<T>, x, dy);
}
template <class T>
Vec geglu_forward(Vec const& x) {
  return gated<T>(kernels::geglu_forward<T>, x);
}
template <class T>
Vec geglu_backward(Vec const& x, Vec const& dy) {
  return gated<T>(kernels::geglu_backward<T>, x, dy);
}

Vec const gelu_x = random_values("gelu x", rows*cols, 2.0), dy = random_values("act dy", rows*cols),
          swiglu_x = random_values("swiglu x", 2 * rows * cols, 2.0);

TEST(Gelu, ForwardMatchesTheFormula) {
  Vec expected;
  for (double x : gelu_x) expected.push_back(gelu(x));
  expect_close(gelu_forward<double>(gelu_x), expected, 1e-14);
  expect_close(gelu_forward<float>(gelu_x), expected, 1e-6);
}
TEST(Gelu, BackwardMatchesFiniteDifferences) {
  auto const g = gelu_backward<double>(gelu_x, dy);
  expect_gradient([](Vec const& v) { return dot(gelu_forward<double>(v), dy); }, gelu_x, g, "dx");
  expect_close(gelu_backward<float>(gelu_x, dy), g, 1e-6);
}

template <class T>
void check_far_arguments() {
  Vec x(rows * cols, 0.0);
  Vec const far = {-1e4, -300.0, -40.0, -12.0, 0.0, 12.0, 40.0, 300.0, 1e4};
  std::copy(far.begin(), far.end(), x.begin());
  auto const y = gelu_forward<T>(x), d = gelu_backward<T>(x, Vec(rows * cols, 1.0));
  for (std::size_t i = 0; i < far.size(); ++i) {
    double const step = far[i] > 0 ? 1.0 : far[i] < 0 ? 0.0 : 0.5;
    EXPECT_NEAR(y[i], std::max(far[i], 0.0), 1e-6) << far[i];
    EXPECT_NEAR(d[i], step, 1e-6) << far[i];
  }
}
TEST(Gelu, FarArgumentsStayFinite) {
  check_far_arguments<double>();
  check_far_arguments<float>();
}

TEST(Geglu, IsGeluOfTheGateTimesUp) {
  Vec expected;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      expected.push_back(gelu(swiglu_x[r * 2 * cols + c]) * swiglu_x[r * 2 * cols + cols + c]);
  expect_close(geglu_forward<double>(swiglu_x), expected, 1e-14);
  expect_close(geglu_forward<float>(swiglu_x), expected, 1e-6);
  auto const g = geglu_backward<double>(swiglu_x, dy);
  expect_gradient([](Vec const& v) { return dot(geglu_forward<double>(v), dy); }, swiglu_x, g, "dgate_up");
  expect_close(geglu_backward<float>(swiglu_x, dy), g, 1e-6);
}

constexpr kernels::SwigluBounds bounds{1.3, 1.1};
template <class T>
Vec clamped_forward(Vec const& x) {
  return gated<T>([](ExecSpace const& exec, View2<T const> in, View2<T> y,
                     View1<T const> bias) { kernels::swiglu_clamped_forward<T>(exec, bounds, in, y, bias); },
                  x);
}
template <class T>
Vec clamped_backward(Vec const& x, Vec const& g) {
  return gated<T>([](ExecSpace const& exec, View2<T const> in, View2<T const> d, View2<T> dx,
                     View1<T const> bias) { kernels::swiglu_clamped_backward<T>(exec, bounds, in, d, dx, bias); },
                  x, g);
}
TEST(ClampedSwiglu, BoundsGateAboveAndUpOnBothSides) {
  Vec expected;
  int of_gates = 0, of_ups = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      double const gate = swiglu_x[r * 2 * cols + c], up = swiglu_x[r * 2 * cols + cols + c];
      double const g = std::min(gate, bounds.limit), u = std::clamp(up, -bounds.limit, bounds.limit);
      of_gates += g < gate ? 1 : 0, of_ups += u < up ? 1 : 0;
      expected.push_back((u + 1) * g / (1 + std::exp(-bounds.alpha * g)));
    }
  EXPECT_GT(of_gates, 0);
  EXPECT_GT(of_ups, 0);
  expect_close(clamped_forward<double>(swiglu_x), expected, 1e-14);
  expect_close(clamped_forward<float>(swiglu_x), expected, 1e-6);
  auto const g = clamped_backward<double>(swiglu_x, dy);
  expect_gradient([](Vec const& v) { return dot(clamped_forward<double>(v), dy); }, swiglu_x, g, "dgate_up");
  expect_close(clamped_backward<float>(swiglu_x, dy), g, 1e-6);
}
TEST(ClampedSwiglu, KeepsNanAndFarNumbers) {
  Vec x(2 * rows * cols, 0.0);
  Vec const far = {-1e4, -100.0, 100.0, 1e4, std::nan(""), 0.0};
  std::copy(far.begin(), far.end(), x.begin());
  x[cols + 5] = std::nan("");
  auto const y = clamped_forward<float>(x);
  double const most = bounds.limit / (1 + std::exp(-bounds.alpha * bounds.limit));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], far[i] > 0 ? most : 0.0, 1e-6) << far[i];
  auto const d = clamped_backward<float>(x, Vec(rows * cols, 1.0));
  EXPECT_EQ(d[2], 0.0);
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[5]) && std::isnan(d[4]));
}

TEST(Swiglu, ForwardMatchesTheFormula) {
  Vec expected;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      expected.push_back(silu(swiglu_x[r * 2 * cols + c]) * swiglu_x[r * 2 * cols + cols + c]);
  expect_close(swiglu_forward<double>(swiglu_x), expected, 1e-14);
  expect_close(swiglu_forward<float>(swiglu_x), expected, 1e-6);
}
TEST(Swiglu, BackwardMatchesFiniteDifferences) {
  auto const g = swiglu_backward<double>(swiglu_x, dy);
  expect_gradient([](Vec const& v) { return dot(swiglu_forward<double>(v), dy); }, swiglu_x, g, "dgate_up");
  expect_close(swiglu_backward<float>(swiglu_x, dy), g, 1e-6);
}

template <class T>
void check_far_gates() {
  Vec const far = {-1e4, -300.0, -100.0, -40.0, 0.0, 40.0, 100.0, 300.0, 1e4};
  Vec x(2 * rows * cols, 0.0);  // gates, then ups of 2
  std::copy(far.begin(), far.end(), x.begin());
  std::fill_n(x.begin() + cols, cols, 2.0);
  auto const y = swiglu_forward<T>(x), d = swiglu_backward<T>(x, Vec(rows * cols, 1.0));
  for (std::size_t i = 0; i < far.size(); ++i) {
    EXPECT_NEAR(y[i], 2.0 * std::max(far[i], 0.0), 1e-6) << far[i];
    EXPECT_NEAR(d[i], far[i] > 0 ? 2.0 : far[i] < 0 ? 0.0 : 1.0, 1e-6) << far[i];
    EXPECT_NEAR(d[cols + i], std::max(far[i], 0.0), 1e-6) << far[i];
  }
}
TEST(Swiglu, FarGatesStayFinite) {
  check_far_gates<double>();
  check_far_gates<float>();
}

template <class S>
void check_16_bits() {
  auto const x = rounded<S>(gelu_x), gate_up = rounded<S>(swiglu_x), g = rounded<S>(dy);
  expect_rounded<S>(gelu_forward<S>(x), gelu_forward<double>(x), "gelu");
  expect_rounded<S>(gelu_backward<S>(x, g), gelu_backward<double>(x, g), "gelu, backward");
  expect_rounded<S>(swiglu_forward<S>(gate_up), swiglu_forward<double>(gate_up), "swiglu");
  expect_rounded<S>(swiglu_backward<S>(gate_up, g), swiglu_backward<double>(gate_up, g), "swiglu, backward");
  expect_rounded<S>(clamped_forward<S>(gate_up), clamped_forward<double>(gate_up), "clamped swiglu");
  expect_rounded<S>(clamped_backward<S>(gate_up, g), clamped_backward<double>(gate_up, g), "clamped swiglu, backward");
  expect_rounded<S>(geglu_forward<S>(gate_up), geglu_forward<double>(gate_up), "geglu");
  expect_rounded<S>(geglu_backward<S>(gate_up, g), geglu_backward<double>(gate_up, g), "geglu, backward");
}
TEST(Activations, In16BitsAreTheOnesInDoubleRoundedOnce) {
  check_16_bits<bfloat16>();
  check_16_bits<float16>();
}

}  // namespace activations_test
