// SPDX-License-Identifier: Apache-2.0
// An element is on one of two curves, and adds to the gradient of one slope. Blocks of rows are summed into the
// workspace of column sums, before the gradient of the result is overwritten.
#include <p3d/kernels/xielu.hpp>

#include "column_sum.hpp"
#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// ln(1 + exp(v)).
template <class A>
KOKKOS_INLINE_FUNCTION A softplus(A v) {
  A const size = v < A(0) ? -v : v;
  return (v > A(0) ? v : A(0)) + std::log1p(exp_of(-size));
}

/// exp(x) - 1 - x for x <= 0. Near 0, where it is about x^2 / 2, it is a polynomial (remainder below 2^-56 of it).
template <class A>
KOKKOS_INLINE_FUNCTION A exp_beyond_line(A x) {
  A p = A(1.0 / 479001600.0);
  p = p * x + A(1.0 / 39916800.0);
  p = p * x + A(1.0 / 3628800.0);
  p = p * x + A(1.0 / 362880.0);
  p = p * x + A(1.0 / 40320.0);
  p = p * x + A(1.0 / 5040.0);
  p = p * x + A(1.0 / 720.0);
  p = p * x + A(1.0 / 120.0);
  p = p * x + A(1.0 / 24.0);
  p = p * x + A(1.0 / 6.0);
  p = p * x + A(0.5);
  A const near = p * x * x, far = (exp_of(x) - A(1)) - x;
  return x > A(-0.25) ? near : far;
}

/// The curve that a_n multiplies: exp(min(x, eps)) - 1 - x, for x <= 0. NaN stays NaN.
template <class A>
KOKKOS_INLINE_FUNCTION A negative_curve(A x) {
  constexpr A eps = static_cast<A>(base::xielu_eps);
  A const held = x < eps ? x : eps;
  return exp_beyond_line(held) + (held - x);
}

/// The function for one pair of slopes.
template <class S>
struct Xielu {
  using A = Acc<S>;
  A positive, negative;
  KOKKOS_INLINE_FUNCTION explicit Xielu(View1<S const> const& slopes)
      : positive(softplus(static_cast<A>(slopes(0)))),
        negative(static_cast<A>(base::xielu_beta) + softplus(static_cast<A>(slopes(1)))) {}
  KOKKOS_INLINE_FUNCTION A value(A x) const {
    A const curve = x > A(0) ? positive * (x * x) : negative * negative_curve(x);
    return curve + static_cast<A>(base::xielu_beta) * x;
  }
  KOKKOS_INLINE_FUNCTION A derivative(A x) const {
    constexpr A eps = static_cast<A>(base::xielu_eps);
    A const held = x < eps ? x : eps;
    A const falling = x < eps ? exp_beyond_line(held) + held : A(-1);
    return (x > A(0) ? A(2) * positive * x : negative * falling) + static_cast<A>(base::xielu_beta);
  }
};

/// The number that an element adds to the gradient of a_p, for the gradient d of its result.
struct PositiveTerm {
  template <class A>
  KOKKOS_INLINE_FUNCTION double operator()(A d, A x) const {
    return x > A(0) ? static_cast<double>(d) * static_cast<double>(x * x) : 0.0;
  }
};
/// The number that an element adds to the gradient of a_n.
struct NegativeTerm {
  template <class A>
  KOKKOS_INLINE_FUNCTION double operator()(A d, A x) const {
    return x > A(0) ? 0.0 : static_cast<double>(d) * static_cast<double>(negative_curve(x));
  }
};

/// The sum of term(dy, x + bias) over a row of n elements; a null bias is none.
template <class S, class Team, class Term>
KOKKOS_INLINE_FUNCTION double sum_terms(Team const& team, std::int64_t n, Term const term, S const* dy, S const* x,
                                        S const* bias) {
  using A = Acc<S>;
  if (bias)
    return sum_row<double>(
        team, n, [=](S d, S v, S b) { return term(A(d), A(v) + A(b)); }, dy, x, bias);
  return sum_row<double>(
      team, n, [=](S d, S v) { return term(A(d), A(v)); }, dy, x);
}

/// The address of a bias from a column on; null for an empty bias.
template <class S>
KOKKOS_INLINE_FUNCTION S const* bias_at(View1<S const> const& bias, std::int64_t column) {
  return bias.extent(0) != 0 ? &bias(column) : nullptr;
}

/// Leaves the sums of both terms over blocks of rows for `sums`.
template <class S, class G>
void sum_slopes(ExecSpace const& exec, View2<S const> x, View1<S const> slopes, View2<S const> dy, View1<S const> bias,
                View1<G> d_slopes, ColumnSums<S, G>& sums) {
  auto const rows = static_cast<std::int64_t>(x.extent(0)), columns = static_cast<std::int64_t>(x.extent(1));
  auto const size = rows_of_block(rows, 2, column_workspace_size / 64, 1);
  auto const blocks = (rows + size - 1) / size;
  auto const parts = sums.add_parts(blocks, d_slopes);
  for_rows(
      "p3d::kernels::xielu_slopes", exec, blocks,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t block) {
        double positive = 0, negative = 0;
        std::int64_t const begin = block * size, end = begin + size < rows ? begin + size : rows;
        for (std::int64_t r = begin; r < end; ++r) {
          S const *const d = &dy(r, 0), *const v = &x(r, 0), *const b = bias_at<S>(bias, 0);
          positive += sum_terms<S>(team, columns, PositiveTerm{}, d, v, b);
          negative += sum_terms<S>(team, columns, NegativeTerm{}, d, v, b);
        }
        once(team, [&] {
          using A = Acc<S>;
          // softplus'(v) = sigmoid(v)
          parts(block, 0) = positive * static_cast<double>(sigmoid(static_cast<A>(slopes(0))));
          parts(block, 1) = negative * static_cast<double>(sigmoid(static_cast<A>(slopes(1))));
        });
      },
      (columns + wide<S> - 1) / wide<S>);
}

/// out = of(function, x + bias, its element of `other`), element by element.
template <class S, class Of>
void map_elements(char const* label, ExecSpace const& exec, View2<S const> x, View1<S const> slopes,
                  View1<S const> bias, View2<S const> other, View2<S> out, Of const of) {
  for_chunks<wide<S>>(
      label, exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        using A = Acc<S>;
        Xielu<S> const function(slopes);
        auto const in = read<wide<S>>(&x(r, c), n), factor = read<wide<S>>(&other(r, c), n);
        A value[wide<S>];
        if (S const* const b = bias_at<S>(bias, c)) {
          auto const add = read<wide<S>>(b, n);
          P3D_SIMD
          for (int i = 0; i < lanes<wide<S>>(n); ++i) value[i] = A(in[i]) + A(add[i]);
        } else {
          P3D_SIMD
          for (int i = 0; i < lanes<wide<S>>(n); ++i) value[i] = in[i];
        }
        auto to = write<wide<S>>(&out(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(to[i], of(function, value[i], A(factor[i])));
        to.store();
      });
}

struct XieluValue {
  template <class F, class A>
  KOKKOS_INLINE_FUNCTION A operator()(F const& function, A x, A) const {
    return function.value(x);
  }
};
struct XieluGradient {
  template <class F, class A>
  KOKKOS_INLINE_FUNCTION A operator()(F const& function, A x, A d) const {
    return d * function.derivative(x);
  }
};

}  // namespace

template <class S>
void xielu_forward(ExecSpace const& exec, View2<S const> x, View1<S const> slopes, View2<S> y,
                   Given<View1<S const>> bias) {
  map_elements<S>("p3d::kernels::xielu_forward", exec, x, slopes, bias, x, y, XieluValue{});
}

template <class S, class G>
void xielu_backward(ExecSpace const& exec, View2<S const> x, View1<S const> slopes, View2<S const> dy, View2<S> dx,
                    Given<View1<S const>> bias, Given<View1<G>> d_slopes, ColumnSums<S, G>& sums) {
  if (x.size() == 0) return;
  sum_slopes<S, G>(exec, x, slopes, dy, bias, d_slopes, sums);
  map_elements<S>("p3d::kernels::xielu_backward", exec, x, slopes, bias, dy, dx, XieluGradient{});
}

#define P3D_INSTANTIATE(S, G)                                                                                    \
  template void xielu_backward<S, G>(ExecSpace const&, View2<S const>, View1<S const>, View2<S const>, View2<S>, \
                                     Given<View1<S const>>, Given<View1<G>>, ColumnSums<S, G>&);
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(bfloat16, float)
P3D_INSTANTIATE(float16, float)
P3D_INSTANTIATE(bfloat16, bfloat16)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(S) \
  template void xielu_forward<S>(ExecSpace const&, View2<S const>, View1<S const>, View2<S>, Given<View1<S const>>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
