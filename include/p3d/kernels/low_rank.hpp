// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of PowerSGD (Vogels et al., arXiv 1905.13727, algorithm 1), on whole matrices. A is float or double: the type
// of sums. A factor Q of a matrix of m columns and rank r is kept as its transpose [r, m]. Operands are not rounded,
// whatever GEMMs do.

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
/// dots(k) = the sum over e of x_i(e) x_k(e), for k from i on, and 0 below. Vector k of x is its column, or, with
/// `rows`, its row.
template <class A>
void dot_products(ExecSpace const& exec, View2<A const> x, bool rows, int i, View1<A> dots);
/// One step of Gram and Schmidt: takes vector i's part out of the vectors behind it, and gives it the length 1 (a
/// vector of zeros stays). `dots`: of dot_products(), summed over the ranks that divide the vectors.
template <class A>
void orthogonalise(ExecSpace const& exec, View2<A> x, bool rows, int i, View1<A const> dots);
/// g [n, m] = factor * p q.
template <class G>
void write_product(ExecSpace const& exec, Acc<G> factor, View2<Acc<G> const> p, View2<Acc<G> const> q, View2<G> g);
/// m -= factor * p q.
template <class A>
void subtract_product(ExecSpace const& exec, A factor, View2<A const> p, View2<A const> q, View2<A> m);

}  // namespace p3d::kernels
