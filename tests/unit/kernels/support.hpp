// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data on the host as vectors of double, copies to and from the device, and central finite differences.

#include <p3d/base/random.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::test {

using device::ExecSpace;
using device::Owned1;
using device::Owned2;
using device::View1;
using device::View2;
using Vec = std::vector<double>;

/// n normal numbers with standard deviation `std`, a function of the name.
inline Vec random_values(std::string_view name, std::int64_t n, double std = 1.0) {
  Vec v(static_cast<std::size_t>(n));
  auto const key = base::random_key(7, name);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std * base::random_normal(key, 0, i);
  return v;
}

template <class T>
Owned1<T> vector_of(Vec const& v) {
  Owned1<T> d("p3d::test::vector", v.size());
  auto const h = device::host_mirror(d);
  for (std::size_t i = 0; i < v.size(); ++i) h(i) = static_cast<T>(v[i]);
  Kokkos::deep_copy(d, h);
  return d;
}
template <class T>
Owned2<T> matrix_of(std::int64_t rows, std::int64_t cols, Vec const& v) {
  Owned2<T> d("p3d::test::matrix", rows, cols);
  EXPECT_EQ(d.size(), v.size());
  auto const h = device::host_mirror(d);
  for (std::size_t i = 0; i < v.size(); ++i) h.data()[i] = static_cast<T>(v[i]);
  Kokkos::deep_copy(d, h);
  return d;
}
inline Owned1<int> ints_of(std::vector<int> const& v) { return vector_of<int>(Vec(v.begin(), v.end())); }

/// All elements, row after row, of an owned view.
template <class View>
Vec host(View const& d) {
  Kokkos::fence();
  auto const h = device::host_copy(d);
  return Vec(h.data(), h.data() + h.size());
}

/// What `add` adds to a sum on the device.
inline double sum_of(std::function<void(View1<double>)> const& add) {
  Owned1<double> const sum("p3d::test::sum", 1);
  add(sum);
  return kernels::take_sums(ExecSpace(), sum).at(0);
}
template <class S>
double sum_squares(View1<S const> x) {
  auto const n = static_cast<std::int64_t>(x.extent(0));
  return sum_of([&](View1<double> sum) { kernels::add_sum_squares<S>(ExecSpace(), x, {{0, n}}, sum); });
}

inline double dot(Vec const& a, Vec const& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

inline double largest(Vec const& v) {
  double m = 0;
  for (double x : v) m = std::max(m, std::abs(x));
  return m;
}

/// Every element within `tolerance` of the largest expected one (at least 1).
inline void expect_close(Vec const& found, Vec const& expected, double tolerance, std::string const& what = "value") {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double const scale = std::max(1.0, largest(expected));
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], tolerance * scale) << what << ", element " << i;
}

/// What a result of this type may differ from one in double.
template <class T>
constexpr double tolerance_of() {
  return std::is_same_v<T, float> ? 4e-6 : 1e-13;
}

// Kernels on 16 bits are compared with the same kernel in double on the same numbers, which are then exact.

using device::bfloat16;
using device::float16;
template <class S>
using Acc = device::accumulate_t<S>;

/// The numbers as S keeps them.
template <class S>
Vec rounded(Vec const& v) {
  return host(vector_of<S>(v));
}

/// Half a unit in the last place, relative to the number, at most.
template <class S>
constexpr double roundoff = std::is_same_v<S, bfloat16> ? 0x1p-8 : 0x1p-11;

/// Every element is the expected one rounded once to S, but for what arithmetic in float differs: `arithmetic` of the
/// largest expected one (at least 1).
template <class S>
void expect_rounded(Vec const& found, Vec const& expected, std::string const& what = "value",
                    double arithmetic = 4e-6) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double const slack = arithmetic * std::max(1.0, largest(expected));
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], roundoff<S> * std::abs(expected[i]) + slack) << what << ", element " << i;
}

/// d loss / d x by central differences against `gradient`, relative to the largest element of the gradient. Of many
/// elements every n-th one is compared, where a test of its own has them written out.
inline void expect_gradient(std::function<double(Vec const&)> const& loss, Vec x, Vec const& gradient,
                            std::string const& what, double tolerance = 1e-8, std::size_t every = 1) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  double const scale = largest(gradient);
  ASSERT_GT(scale, 1e-6) << what << ": a gradient of zeros shows nothing";
  constexpr double h = 1e-4;
  for (std::size_t i = 0; i < x.size(); i += every) {
    double const x0 = x[i];
    auto const at = [&](double step) {
      x[i] = x0 + step;
      return loss(x);
    };
    // Fourth order: error h^4, rounding 1e-16 / h.
    double const slope = (8.0 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12.0 * h);
    x[i] = x0;
    ASSERT_NEAR(gradient[i], slope, tolerance * scale) << what << ", element " << i;
  }
}

/// Same bits.
inline void expect_same(Vec const& a, Vec const& b, std::string const& what = "value") {
  ASSERT_EQ(a.size(), b.size()) << what;
  // memcmp takes no null pointer, not even for no bytes.
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0)
      << what << ": not the same bits";
}

inline Vec plus(Vec a, Vec const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace p3d::test
