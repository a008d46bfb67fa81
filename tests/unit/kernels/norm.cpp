// SPDX-License-Identifier: Apache-2.0
// Layer and RMS norm: against sums written out, against finite differences, and double against float.

#include "support.hpp"

#include <p3d/kernels/norm.hpp>

using namespace p3d::test;
using p3d::kernels::Store;

namespace norm_test {

struct Case {
  std::int64_t rows, hidden;
  bool layer, bias;  // layer norm or RMS norm
};
constexpr double eps = 1e-3;

/// y, mean, rstd of one kind of norm, plainly.
struct Plain {
  Vec y, mean, rstd;
};
Plain plain(Case const& c, Vec const& x, Vec const& w, Vec const& b) {
  Plain p{Vec(x.size()), Vec(c.rows), Vec(c.rows)};
  for (std::int64_t r = 0; r < c.rows; ++r) {
    long double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < c.hidden; ++i) sum += x[r * c.hidden + i];
    double const mean = c.layer ? static_cast<double>(sum / c.hidden) : 0.0;
    for (std::int64_t i = 0; i < c.hidden; ++i) squares += std::pow(x[r * c.hidden + i] - mean, 2);
    double const rstd = 1.0 / std::sqrt(static_cast<double>(squares / c.hidden) + eps);
    for (std::int64_t i = 0; i < c.hidden; ++i)
      p.y[r * c.hidden + i] = (x[r * c.hidden + i] - mean) * rstd * w[i] + (c.bias ? b[i] : 0.0);
    p.mean[r] = mean;
    p.rstd[r] = rstd;
  }
  return p;
}

template <class T>
Plain forward(Case const& c, Vec const& x, Vec const& w, Vec const& b) {
  auto const dx = matrix_of<T>(c.rows, c.hidden, x);
  auto const dw = vector_of<T>(w);
  auto const db = vector_of<T>(c.bias ? b : Vec());
  Owned2<T> const y("p3d::test::y", c.rows, c.hidden);
  Owned1<Acc<T>> const mean("p3d::test::mean", c.rows), rstd("p3d::test::rstd", c.rows);
  if (c.layer)
    p3d::kernels::layernorm_forward<T>(ExecSpace(), dx, dw, db, eps, y, mean, rstd);
  else
    p3d::kernels::rmsnorm_forward<T>(ExecSpace(), dx, dw, eps, y, rstd);
  return {host(y), host(mean), host(rstd)};
}

struct Gradients {
  Vec x, w, b;
};
/// Starts from `before` in every result.
template <class T>
Gradients backward(Case const& c, Vec const& x, Vec const& w, Vec const& dy, Store store, double before) {
  auto const saved = forward<T>(c, x, w, Vec(w.size(), 0.0));
  auto const dx = matrix_of<T>(c.rows, c.hidden, Vec(x.size(), before));
  auto const dw = vector_of<Acc<T>>(Vec(w.size(), before)), db = vector_of<Acc<T>>(Vec(c.bias ? w.size() : 0, before));
  auto const gx = matrix_of<T>(c.rows, c.hidden, x), gdy = matrix_of<T>(c.rows, c.hidden, dy);
  auto const gw = vector_of<T>(w);
  auto const mean = vector_of<Acc<T>>(saved.mean), rstd = vector_of<Acc<T>>(saved.rstd);
  if (c.layer)
    p3d::kernels::layernorm_backward<T>(ExecSpace(), gdy, gx, gw, mean, rstd, store, dx, dw, db);
  else
    p3d::kernels::rmsnorm_backward<T>(ExecSpace(), gdy, gx, gw, rstd, store, dx, dw);
  return {host(dx), host(dw), host(db)};
}

class Norm : public ::testing::TestWithParam<Case> {
protected:
  Case const c = GetParam();
  Vec const x = random_values("norm x", c.rows*c.hidden), w = random_values("norm w", c.hidden),
            b = random_values("norm b", c.hidden), dy = random_values("norm dy", c.rows*c.hidden);
};

TEST_P(Norm, AnOffsetIsAddedToTheWeight) {
  auto less = w;
  for (double& v : less) v -= 1.0;
  auto const weight = vector_of<double>(w), rest = vector_of<double>(less),
             bias = vector_of<double>(c.bias ? b : Vec());
  auto const in = matrix_of<double>(c.rows, c.hidden, x), g = matrix_of<double>(c.rows, c.hidden, dy);
  struct Results {
    Vec y, dx, dw;
  };
  auto const run = [&](p3d::kernels::NormWeight<double> const& at) {
    Owned2<double> const y("p3d::test::y", c.rows, c.hidden), dx("p3d::test::dx", c.rows, c.hidden);
    Owned1<double> const mean("p3d::test::mean", c.rows), rstd("p3d::test::rstd", c.rows),
        dw("p3d::test::dw", c.hidden), db("p3d::test::db", c.bias ? c.hidden : 0);
    if (c.layer) {
      p3d::kernels::layernorm_forward<double>(ExecSpace(), in, at, bias, eps, y, mean, rstd);
      p3d::kernels::layernorm_backward<double>(ExecSpace(), g, in, at, mean, rstd, Store::overwrite, dx, dw, db);
    } else {
      p3d::kernels::rmsnorm_forward<double>(ExecSpace(), in, at, eps, y, rstd);
      p3d::kernels::rmsnorm_backward<double>(ExecSpace(), g, in, at, rstd, Store::overwrite, dx, dw);
    }
    return Results{host(y), host(dx), host(dw)};
  };
  auto const whole = run(weight), beside = run({rest, 1.0});
  expect_close(beside.y, whole.y, 1e-14, "y");
  expect_close(beside.dx, whole.dx, 1e-13, "dx");
  expect_same(beside.dw, whole.dw, "dw");
}

TEST_P(Norm, ForwardMatchesPlainSums) {
  auto const expected = plain(c, x, w, b);
  auto const check = [&](Plain const& found, double tolerance) {
    expect_close(found.y, expected.y, tolerance, "y");
    expect_close(found.rstd, expected.rstd, tolerance, "rstd");
    if (c.layer) expect_close(found.mean, expected.mean, tolerance, "mean");
  };
  check(forward<double>(c, x, w, b), tolerance_of<double>());
  check(forward<float>(c, x, w, b), tolerance_of<float>());
}

TEST_P(Norm, BackwardMatchesFiniteDifferences) {
  auto const g = backward<double>(c, x, w, dy, Store::overwrite, 0.0);
  expect_gradient([&](Vec const& v) { return dot(forward<double>(c, v, w, b).y, dy); }, x, g.x, "dx");
  expect_gradient([&](Vec const& v) { return dot(forward<double>(c, x, v, b).y, dy); }, w, g.w, "dweight");
  if (c.bias) expect_gradient([&](Vec const& v) { return dot(forward<double>(c, x, w, v).y, dy); }, b, g.b, "dbias");
}

TEST_P(Norm, BackwardAddsWhereItShould) {
  auto const zero = backward<double>(c, x, w, dy, Store::overwrite, 0.0);
  auto const over = backward<double>(c, x, w, dy, Store::overwrite, 2.0);
  auto const add = backward<double>(c, x, w, dy, Store::add, 2.0);
  expect_same(over.x, zero.x, "dx overwritten");
  expect_close(add.x, plus(zero.x, Vec(zero.x.size(), 2.0)), 1e-14, "dx added");
  expect_close(over.w, plus(zero.w, Vec(zero.w.size(), 2.0)), 1e-14, "dweight added");
  expect_close(over.b, plus(zero.b, Vec(zero.b.size(), 2.0)), 1e-14, "dbias added");
}

TEST_P(Norm, FloatBackwardIsNearDouble) {
  auto const a = backward<float>(c, x, w, dy, Store::overwrite, 0.0);
  auto const d = backward<double>(c, x, w, dy, Store::overwrite, 0.0);
  expect_close(a.x, d.x, tolerance_of<float>(), "dx");
  expect_close(a.w, d.w, tolerance_of<float>(), "dweight");
  expect_close(a.b, d.b, tolerance_of<float>(), "dbias");
}

template <class S>
void check_16_bits(Case const& c, Vec const& x, Vec const& w, Vec const& b, Vec const& dy) {
  auto const found = forward<S>(c, x, w, b), expected = forward<double>(c, x, w, b);
  expect_rounded<S>(found.y, expected.y, "y");
  expect_close(found.rstd, expected.rstd, 4e-6, "rstd");
  if (c.layer) expect_close(found.mean, expected.mean, 4e-6, "mean");
  for (Store store : {Store::overwrite, Store::add}) {
    auto const g = backward<S>(c, x, w, dy, store, 2.0), d = backward<double>(c, x, w, dy, store, 2.0);
    expect_rounded<S>(g.x, d.x, "dx");
    expect_close(g.w, d.w, 4e-6, "dweight");  // float
    expect_close(g.b, d.b, 4e-6, "dbias");
  }
}
TEST_P(Norm, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>(c, rounded<bfloat16>(x), rounded<bfloat16>(w), rounded<bfloat16>(b), rounded<bfloat16>(dy));
  check_16_bits<float16>(c, rounded<float16>(x), rounded<float16>(w), rounded<float16>(b), rounded<float16>(dy));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Norm,
                         ::testing::Values(Case{3, 5, true, true}, Case{5, 67, true, false}, Case{4, 32, true, true},
                                           Case{3, 5, false, false}, Case{4, 67, false, false}));

TEST(NormLong, AMeanFarFromZeroCostsNoAccuracy) {
  Case const c{2, 1000, true, false};
  auto x = random_values("far", c.rows * c.hidden);
  for (double& v : x) v = static_cast<float>(v + 100.0);
  Vec const w(c.hidden, 1.0);
  expect_close(forward<float>(c, x, w, {}).y, plain(c, x, w, {}).y, 2e-5);
}

}  // namespace norm_test
