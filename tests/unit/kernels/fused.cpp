// SPDX-License-Identifier: Apache-2.0
// Kernels that do the work of several give what the several give: norms with the residual branches on both sides,
// activation functions with a bias, attention's backward with its delta, sums over the rows of many matrices.

#include "attention_case.hpp"
#include "support.hpp"

#include <support/errors.hpp>

#include <p3d/kernels/column_sums.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/norm.hpp>

#include <algorithm>

using namespace p3d::test;
namespace kernels = p3d::kernels;
using kernels::Dropout;
using kernels::Store;
using kernels::TokenRows;

namespace fused_test {

constexpr std::int64_t samples = 5, seq = 23, hidden = 133, rows = 90;  // some of the rows of the samples
constexpr double eps = 1e-5;
TokenRows const shape{7, samples, seq, 11};
Dropout const drop = kernels::make_dropout(0.3, 11, "site");
Vec const x = random_values("x", rows*hidden), branch = random_values("branch", rows*hidden),
          dy = random_values("dy", rows*hidden), dx_before = random_values("dx", rows*hidden),
          bias = random_values("bias", hidden), weight = random_values("weight", hidden);

template <class S>
struct Forward {
  Owned2<S> const mid{"p3d::test::mid", rows, hidden}, y{"p3d::test::y", rows, hidden};
  Owned1<Acc<S>> const mean{"p3d::test::mean", rows}, scale{"p3d::test::scale", rows};
};

template <class S>
void check_forward(bool layer, bool has_bias, Dropout const& dropout) {
  ExecSpace const exec;
  auto const a = matrix_of<S>(rows, hidden, x), b = matrix_of<S>(rows, hidden, branch);
  auto const add = vector_of<S>(has_bias ? bias : Vec()), w = vector_of<S>(weight), wb = vector_of<S>(bias);
  Forward<S> const once, apart;
  kernels::residual_forward<S>(exec, shape, a, b, add, dropout, apart.mid);
  kernels::ResidualSum<S> const sum{shape, a, b, add, dropout};
  if (layer) {
    kernels::layernorm_forward<S>(exec, apart.mid, w, wb, eps, apart.y, apart.mean, apart.scale);
    kernels::layernorm_forward<S>(exec, sum, once.mid, w, wb, eps, once.y, once.mean, once.scale);
  } else {
    kernels::rmsnorm_forward<S>(exec, apart.mid, w, eps, apart.y, apart.scale);
    kernels::rmsnorm_forward<S>(exec, sum, once.mid, w, eps, once.y, once.scale);
  }
  expect_same(host(once.mid), host(apart.mid), "sum");
  expect_same(host(once.y), host(apart.y), "y");
  expect_same(host(once.mean), host(apart.mean), "mean");
  expect_same(host(once.scale), host(apart.scale), "scale");
}

TEST(FusedNorm, ForwardIsTheResidualSumThenTheNorm) {
  for (bool layer : {false, true})
    for (bool has_bias : {false, true})
      for (Dropout const& dropout : {Dropout{}, drop, kernels::make_dropout(0.3, 11, "site", 0.4).off()}) {
        check_forward<double>(layer, has_bias, dropout);
        check_forward<float>(layer, has_bias, dropout);
        check_forward<bfloat16>(layer, has_bias, dropout);
      }
}

/// Which memory the branches share with the norm's own: what a layer has in each of its forms.
enum class Shares { nothing, after_is_dx, before_is_x, before_is_dy, before_is_after };

struct Results {
  Vec dx, before, weight, bias, after, other;
};

template <class S>
struct Backward {
  using A = Acc<S>;
  Owned2<S> const d = matrix_of<S>(rows, hidden, dx_before), in = matrix_of<S>(rows, hidden, x),
                  g = matrix_of<S>(rows, hidden, dy), own = matrix_of<S>(rows, hidden, branch),
                  other = matrix_of<S>(rows, hidden, dx_before),  // of the same layer
      free{"p3d::test::before", rows, hidden};
  Owned1<S> const w = vector_of<S>(weight);
  Owned1<A> const mean = per_row(0.0), scale = per_row(1.0);
  Owned1<A> const dw = vector_of<A>(bias), db = vector_of<A>(bias), da = vector_of<A>(bias),
                  dother = vector_of<A>(bias);
  static Owned1<A> per_row(double first) {
    Vec v(rows);
    for (std::int64_t r = 0; r < rows; ++r) v[r] = first + 0.01 * static_cast<double>(r);
    return vector_of<A>(v);
  }
  View2<S> after(Shares shares) const { return shares == Shares::after_is_dx ? d : own; }
  Results results(View2<S> before) const { return {host(d), host(before), host(dw), host(db), host(da), host(dother)}; }
};

// A norm behind a branch: the branch with its bias is kept, and the norm takes its place.
template <class S>
void check_norm_of_branch(bool layer, bool has_bias) {
  ExecSpace const exec;
  auto const b = matrix_of<S>(rows, hidden, branch), zeros = matrix_of<S>(rows, hidden, Vec(rows * hidden));
  auto const add = vector_of<S>(has_bias ? bias : Vec()), w = vector_of<S>(weight), wb = vector_of<S>(bias);
  Forward<S> const once, apart;
  kernels::residual_forward<S>(exec, shape, zeros, b, add, {}, apart.mid);
  kernels::ResidualSum<S> sum;
  sum.branch = b;
  sum.bias = add;
  if (layer) {
    kernels::layernorm_forward<S>(exec, apart.mid, w, wb, eps, apart.y, apart.mean, apart.scale);
    kernels::layernorm_forward<S>(exec, sum, once.mid, w, wb, eps, b, once.mean, once.scale);
  } else {
    kernels::rmsnorm_forward<S>(exec, apart.mid, w, eps, apart.y, apart.scale);
    kernels::rmsnorm_forward<S>(exec, sum, once.mid, w, eps, b, once.scale);
  }
  expect_same(host(once.mid), host(apart.mid), "branch");
  expect_same(host(b), host(apart.y), "y");
  expect_same(host(once.scale), host(apart.scale), "scale");
  // Backward in the branch's place.
  Backward<S> const kept, free;
  if (layer) {
    kernels::layernorm_backward<S>(exec, kept.g, kept.in, w, kept.mean, kept.scale, Store::overwrite, kept.in, kept.dw,
                                   kept.db);
    kernels::layernorm_backward<S>(exec, free.g, free.in, w, free.mean, free.scale, Store::overwrite, free.d, free.dw,
                                   free.db);
  } else {
    kernels::rmsnorm_backward<S>(exec, kept.g, kept.in, w, kept.scale, Store::overwrite, kept.in, kept.dw);
    kernels::rmsnorm_backward<S>(exec, free.g, free.in, w, free.scale, Store::overwrite, free.d, free.dw);
  }
  expect_same(host(kept.in), host(free.d), "dx");
  expect_same(host(kept.dw), host(free.dw), "dw");
  expect_same(host(kept.db), host(free.db), "db");
}

TEST(FusedNorm, OfABranchInItsPlace) {
  for (bool layer : {false, true})
    for (bool has_bias : {false, true}) {
      check_norm_of_branch<double>(layer, has_bias);
      check_norm_of_branch<float>(layer, has_bias);
      check_norm_of_branch<bfloat16>(layer, has_bias);
    }
}

template <class S>
Results backward_at_once(bool layer, Shares shares) {
  ExecSpace const exec;
  Backward<S> const b;
  View2<S> const before = shares == Shares::before_is_x       ? b.in
                          : shares == Shares::before_is_dy    ? b.g
                          : shares == Shares::before_is_after ? b.own
                                                              : b.free;
  kernels::ColumnSums<S> sums;
  sums.add(b.other, b.dother);
  kernels::NormBranches<S> const branches{b.after(shares), b.da, shape, drop, before};
  if (layer)
    kernels::layernorm_backward<S>(exec, b.g, b.in, b.w, b.mean, b.scale, Store::add, b.d, b.dw, b.db, branches, sums);
  else
    kernels::rmsnorm_backward<S>(exec, b.g, b.in, b.w, b.scale, Store::add, b.d, b.dw, branches, sums);
  sums.finish(exec);
  return b.results(before);
}

template <class S>
Results backward_apart(bool layer, Shares shares) {
  ExecSpace const exec;
  Backward<S> const b;
  kernels::bias_backward<S>(exec, b.other, b.dother);
  kernels::bias_backward<S>(exec, b.after(shares), b.da);
  if (layer)
    kernels::layernorm_backward<S>(exec, b.g, b.in, b.w, b.mean, b.scale, Store::add, b.d, b.dw, b.db);
  else
    kernels::rmsnorm_backward<S>(exec, b.g, b.in, b.w, b.scale, Store::add, b.d, b.dw);
  kernels::residual_backward<S>(exec, shape, b.d, drop, b.free);
  return b.results(b.free);
}

template <class S>
void check_backward(bool layer, Shares shares) {
  auto const once = backward_at_once<S>(layer, shares), apart = backward_apart<S>(layer, shares);
  expect_same(once.dx, apart.dx, "dx");
  expect_same(once.before, apart.before, "before");
  expect_same(once.weight, apart.weight, "weight");
  expect_same(once.bias, apart.bias, "bias");
  auto const tolerance = 4 * static_cast<double>(std::numeric_limits<Acc<S>>::epsilon());  // blocks of other lengths
  expect_close(once.after, apart.after, tolerance, "after");
  expect_close(once.other, apart.other, tolerance, "other");
}

TEST(FusedNorm, BackwardIsTheSeparateCalls) {
  for (bool layer : {false, true})
    for (auto shares :
         {Shares::nothing, Shares::after_is_dx, Shares::before_is_x, Shares::before_is_dy, Shares::before_is_after}) {
      SCOPED_TRACE(static_cast<int>(shares));
      check_backward<double>(layer, shares);
      check_backward<float>(layer, shares);
      check_backward<bfloat16>(layer, shares);
    }
}

TEST(ColumnSums, OfManyMatricesAreThoseOfEach) {
  ExecSpace const exec;
  struct Size {
    std::int64_t rows, cols;
  };
  std::vector<Size> const sizes{{300, 131}, {1, 7}, {0, 5}, {64, 1}, {1000, 33}};
  kernels::ColumnSums<double> sums;
  std::vector<Owned2<double>> matrices;
  std::vector<Owned1<double>> found;
  std::vector<Vec> expected;
  for (auto const& s : sizes) {
    auto const v = random_values("m", s.rows * s.cols), start = random_values("s", s.cols);
    Vec sum = start;
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t c = 0; c < s.cols; ++c) sum[c] += v[r * s.cols + c];
    expected.push_back(sum);
    matrices.push_back(matrix_of<double>(s.rows, s.cols, v));
    found.push_back(vector_of<double>(start));
    sums.add(matrices.back(), found.back());
    sums.add(matrices.back(), View1<double>());
  }
  // Parts that a kernel wrote.
  auto const parts_start = random_values("p", 3);
  auto const parts_sum = vector_of<double>(parts_start);
  auto const parts = sums.add_parts(2, parts_sum);
  Kokkos::deep_copy(parts, 1.5);
  sums.finish(exec);
  sums.finish(exec);  // nothing waits
  for (std::size_t i = 0; i < sizes.size(); ++i) expect_close(host(found[i]), expected[i], 1e-14);
  expect_same(host(parts_sum), plus(parts_start, Vec(3, 3.0)));
}

TEST(ColumnSums, RefuseMoreThanWaitAtATimeAndOthersInTheirWorkspace) {
  auto const m = matrix_of<double>(2, 3, Vec(6, 1.0));
  auto const sum = vector_of<double>(Vec(3, 0.0));
  {
    kernels::ColumnSums<double> sums;
    for (int i = 0; i < kernels::ColumnSums<double>::most; ++i) sums.add(m, sum);
    expect_error([&] { sums.add(m, sum); }, "finish() them");
  }
  auto const squares = [&] { return sum_squares<double>(vector_of<double>({1.0, 2.0})); };
  {
    kernels::ColumnSums<double> sums;
    sums.add_parts(4, sum);
    expect_error([&] { squares(); }, "ColumnSums::finish comes first");
  }  // what an error leaves behind does not stop those who come later
  EXPECT_EQ(squares(), 5.0);
}

template <class S>
void check_activations() {
  constexpr std::int64_t n = 3, cols = 131;
  ExecSpace const exec;
  auto const in = rounded<S>(random_values("in", 2 * n * cols)), add = rounded<S>(random_values("add", 2 * cols)),
             g = rounded<S>(random_values("g", n * cols));
  Vec wide = in, narrow(in.begin(), in.begin() + n * cols);
  for (std::int64_t i = 0; i < 2 * n * cols; ++i) wide[i] += add[i % (2 * cols)];
  for (std::int64_t i = 0; i < n * cols; ++i) narrow[i] += add[i % cols];
  auto const b = vector_of<S>(add), b_narrow = vector_of<S>(Vec(add.begin(), add.begin() + cols));
  auto const dy_s = matrix_of<S>(n, cols, g);
  auto const dy_d = matrix_of<double>(n, cols, g);
  Owned2<S> const y("p3d::test::y", n, cols), d("p3d::test::d", n, cols), d2("p3d::test::d", n, 2 * cols);
  Owned2<double> const z("p3d::test::z", n, cols), e("p3d::test::e", n, cols), e2("p3d::test::e", n, 2 * cols);
  auto const x_s = matrix_of<S>(n, cols, Vec(in.begin(), in.begin() + n * cols)), x2_s = matrix_of<S>(n, 2 * cols, in);
  auto const x_d = matrix_of<double>(n, cols, narrow), x2_d = matrix_of<double>(n, 2 * cols, wide);
  kernels::gelu_forward<S>(exec, x_s, y, b_narrow);
  kernels::gelu_forward<double>(exec, x_d, z);
  expect_rounded<S>(host(y), host(z), "gelu");
  kernels::gelu_backward<S>(exec, x_s, dy_s, d, b_narrow);
  kernels::gelu_backward<double>(exec, x_d, dy_d, e);
  expect_rounded<S>(host(d), host(e), "gelu backward");
  kernels::swiglu_forward<S>(exec, x2_s, y, b);
  kernels::swiglu_forward<double>(exec, x2_d, z);
  expect_rounded<S>(host(y), host(z), "swiglu");
  kernels::swiglu_backward<S>(exec, x2_s, dy_s, d2, b);
  kernels::swiglu_backward<double>(exec, x2_d, dy_d, e2);
  expect_rounded<S>(host(d2), host(e2), "swiglu backward");
}
TEST(FusedBias, IsAddedToTheArgument) {
  check_activations<bfloat16>();
  check_activations<float16>();
}

template <class T>
void check_delta(attention_test::Case const& c) {
  auto const qkv = matrix_of<T>(c.rows(), c.width(), random_values("qkv", c.rows() * c.width()));
  auto const dout = matrix_of<T>(c.rows(), c.out_width(), random_values("dout", c.rows() * c.out_width()));
  Owned2<T> const out("p3d::test::out", c.rows(), c.out_width()), apart("p3d::test::apart", c.rows(), c.width()),
      once("p3d::test::once", c.rows(), c.width());
  Owned1<Acc<T>> const lse("p3d::test::lse", c.rows() * c.heads), delta("p3d::test::delta", c.rows() * c.heads);
  auto const sizes = c.shape();
  attention_test::attend<T>(c, sizes, qkv, out, lse);
  attention_test::attend_backward<T>(c, sizes, qkv, out, lse, dout, apart);
  attention_test::Parts<T const> const in(c, qkv);
  attention_test::Parts<T> const d(c, once);
  kernels::WholeOutput<T> const whole{kernels::heads_of(View2<T const>(out)), delta};
  attention_test::Scratch<T> const scratch(sizes);
  kernels::attention_backward<T>(ExecSpace(), sizes, c.dropout(), scratch, in.q, in.k, in.v,
                                 kernels::heads_of(View2<T const>(dout)), View1<Acc<T> const>(lse),
                                 View1<Acc<T> const>(delta), Store::overwrite, d.q, Store::overwrite, d.k, d.v, whole);
  expect_same(host(once), host(apart));
}
TEST(FusedAttention, BackwardMakesItsDelta) {
  check_delta<double>({2, 65, 4, 2, 16, 0.0});
  check_delta<float>({1, 70, 2, 1, 8, 0.2});
  check_delta<bfloat16>({1, 70, 2, 1, 8, 0.0});
}

}  // namespace fused_test
