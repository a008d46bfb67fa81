// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of PowerSGD (Vogels et al., arXiv 1905.13727, algorithm 1), on whole matrices. A is float or double: the type
// of sums. A factor Q of a matrix of m columns and rank r is kept as its transpose [r, m]. Operands are not rounded,
// whatever GEMMs do.

#include <p3d/base/random.hpp>
#include <p3d/kernels/common.hpp>

#include <cstdint>

namespace p3d::kernels {

/// Adds factor * from to `to`. G is float or double, or bfloat16 beside float.
template <class G>
void add_scaled(ExecSpace const& exec, Acc<G> factor, View1<G const> from, View1<Acc<G>> to);
/// Writes factor * from to `to`.
template <class G>
void write_scaled(ExecSpace const& exec, Acc<G> factor, View1<Acc<G> const> from, View1<G> to);
/// p [n, r] += m [n, columns] q, with q given as [r, columns].
template <class A>
void add_left(ExecSpace const& exec, View2<A const> m, View2<A const> q, View2<A> p);
/// q [r, columns] += (m^T p)^T.
template <class A>
void add_right(ExecSpace const& exec, View2<A const> m, View2<A const> p, View2<A> q);
// Vector k of a matrix x is its column, or, with `rows`, its row. Where ranks divide vectors, they sum the products.
/// norms(k) = the sum over e of x_k(e)^2.
template <class A>
void square_norms(ExecSpace const& exec, View2<A const> x, bool rows, View1<A> norms);
/// dots(k) = the sum over e of x_i(e) x_k(e), for k from i on, and 0 below.
template <class A>
void dot_products(ExecSpace const& exec, View2<A const> x, bool rows, int i, View1<A> dots);
/// One step of Gram and Schmidt: takes vector i's part out of the vectors behind it, and gives it the length 1. Where
/// next to nothing is left of it, beside the longest of `norms` (square_norms() of the first x), that is rounding and
/// no direction of its own: it becomes zero.
template <class A>
void orthogonalise(ExecSpace const& exec, View2<A> x, bool rows, int i, View1<A const> dots, View1<A const> norms);
/// Draws rows of q whose norm is zero anew: normal numbers of the stream, those of a column by its number in the whole
/// matrix, where the first one is `first`.
template <class A>
void draw_zero_rows(ExecSpace const& exec, base::RandomKey key, std::uint64_t stream, std::int64_t first,
                    View1<A const> norms, View2<A> q);
/// g [n, m] = factor * p q.
template <class G>
void write_product(ExecSpace const& exec, Acc<G> factor, View2<Acc<G> const> p, View2<Acc<G> const> q, View2<G> g);
/// m -= factor * p q.
template <class A>
void subtract_product(ExecSpace const& exec, A factor, View2<A const> p, View2<A const> q, View2<A> m);

}  // namespace p3d::kernels
