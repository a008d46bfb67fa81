// SPDX-License-Identifier: Apache-2.0
// The rank is small, so each number of a long matrix is read once, by one thread, for all columns of a factor. Example:
// of a matrix of 4,096 x 4,096 and rank 4, add_left has 4,096 threads, each of which reads a row and adds up 4 numbers.
#include <p3d/kernels/low_rank.hpp>

#include <cmath>

#include "launch.hpp"

namespace p3d::kernels {

namespace {

/// Numbers that a thread adds up beside each other.
constexpr int together = 8;

template <class A>
KOKKOS_FORCEINLINE_FUNCTION A product_at(View2<A const> p, View2<A const> q, std::int64_t row, std::int64_t col) {
  A sum = 0;
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(p.extent(1)); ++k) sum += p(row, k) * q(k, col);
  return sum;
}

template <class Work>
void for_each_number(char const* label, ExecSpace const& exec, std::int64_t n, Work const& work) {
  if (n > 0) launch_kernel(label, FlatRange(exec, 0, n), work);
}

}  // namespace

template <class G>
void add_scaled(ExecSpace const& exec, Acc<G> factor, View1<G const> from, View1<Acc<G>> to) {
  using A = Acc<G>;
  P3D_REQUIRE(from.extent(0) == to.extent(0), "both have one size");
  for_each_number(
      "p3d::kernels::add_scaled", exec, static_cast<std::int64_t>(from.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { to(i) += factor * static_cast<A>(from(i)); });
}

template <class G>
void write_scaled(ExecSpace const& exec, Acc<G> factor, View1<Acc<G> const> from, View1<G> to) {
  P3D_REQUIRE(from.extent(0) == to.extent(0), "both have one size");
  for_each_number(
      "p3d::kernels::write_scaled", exec, static_cast<std::int64_t>(from.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { put(to(i), factor * from(i)); });
}

template <class A>
void add_left(ExecSpace const& exec, View2<A const> m, View2<A const> q, View2<A> p) {
  auto const columns = static_cast<std::int64_t>(m.extent(1)), rank = static_cast<std::int64_t>(p.extent(1));
  for_each_number(
      "p3d::kernels::add_left", exec, static_cast<std::int64_t>(m.extent(0)), KOKKOS_LAMBDA(std::int64_t row) {
        for (std::int64_t first = 0; first < rank; first += together) {
          int const n = static_cast<int>(rank - first < together ? rank - first : together);
          A sums[together] = {};
          for (std::int64_t c = 0; c < columns; ++c)
            for (int k = 0; k < n; ++k) sums[k] += m(row, c) * q(first + k, c);
          for (int k = 0; k < n; ++k) p(row, first + k) += sums[k];
        }
      });
}

template <class A>
void add_right(ExecSpace const& exec, View2<A const> m, View2<A const> p, View2<A> q) {
  auto const rows = static_cast<std::int64_t>(m.extent(0)), rank = static_cast<std::int64_t>(p.extent(1));
  for_each_number(
      "p3d::kernels::add_right", exec, static_cast<std::int64_t>(m.extent(1)), KOKKOS_LAMBDA(std::int64_t col) {
        for (std::int64_t first = 0; first < rank; first += together) {
          int const n = static_cast<int>(rank - first < together ? rank - first : together);
          A sums[together] = {};
          for (std::int64_t r = 0; r < rows; ++r)
            for (int k = 0; k < n; ++k) sums[k] += m(r, col) * p(r, first + k);
          for (int k = 0; k < n; ++k) q(first + k, col) += sums[k];
        }
      });
}

template <class A>
void dot_products(ExecSpace const& exec, View2<A const> x, bool rows, int i, View1<A> dots) {
  auto const length = static_cast<std::int64_t>(x.extent(rows ? 1 : 0));
  for_rows(
      "p3d::kernels::dot_products", exec, static_cast<std::int64_t>(dots.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t k) {
        auto const sum = sum_of<A>(team, k < i ? std::int64_t{0} : length,
                                   [=](std::int64_t e) { return rows ? x(i, e) * x(k, e) : x(e, i) * x(e, k); });
        once(team, [&] { dots(k) = sum; });
      });
}

template <class A>
void square_norms(ExecSpace const& exec, View2<A const> x, bool rows, View1<A> norms) {
  auto const length = static_cast<std::int64_t>(x.extent(rows ? 1 : 0));
  for_rows(
      "p3d::kernels::square_norms", exec, static_cast<std::int64_t>(norms.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t k) {
        auto const sum = sum_of<A>(team, length, [=](std::int64_t e) {
          A const value = rows ? x(k, e) : x(e, k);
          return value * value;
        });
        once(team, [&] { norms(k) = sum; });
      });
}

template <class A>
void orthogonalise(ExecSpace const& exec, View2<A> x, bool rows, int i, View1<A const> dots, View1<A const> norms) {
  auto const number = static_cast<std::int64_t>(dots.extent(0));
  // A square of the root of the unit of rounding: between what rounding leaves and directions that matter.
  constexpr A least = sizeof(A) == 8 ? A(0x1p-52) : A(0x1p-23);
  for_each_number(
      "p3d::kernels::orthogonalise", exec, static_cast<std::int64_t>(x.extent(rows ? 1 : 0)),
      KOKKOS_LAMBDA(std::int64_t e) {
        A const square = dots(i);
        A longest = 0;
        for (std::int64_t k = 0; k < number; ++k) longest = norms(k) > longest ? norms(k) : longest;
        auto& own = rows ? x(i, e) : x(e, i);
        if (square <= least * longest) {
          own = A(0);
          return;
        }
        A const value = own;
        for (std::int64_t k = i + 1; k < number; ++k) (rows ? x(k, e) : x(e, k)) -= dots(k) / square * value;
        own = value / std::sqrt(square);
      });
}

template <class A>
void draw_zero_rows(ExecSpace const& exec, base::RandomKey key, std::uint64_t stream, std::int64_t first,
                    View1<A const> norms, View2<A> q) {
  auto const rank = static_cast<std::int64_t>(q.extent(0));
  for_each_number(
      "p3d::kernels::draw_zero_rows", exec, static_cast<std::int64_t>(q.extent(1)), KOKKOS_LAMBDA(std::int64_t col) {
        for (std::int64_t k = 0; k < rank; ++k)
          if (norms(k) == A(0))
            q(k, col) =
                static_cast<A>(base::random_normal(key, stream, static_cast<std::uint64_t>((first + col) * rank + k)));
      });
}

template <class G>
void write_product(ExecSpace const& exec, Acc<G> factor, View2<Acc<G> const> p, View2<Acc<G> const> q, View2<G> g) {
  auto const columns = static_cast<std::int64_t>(g.extent(1));
  for_each_number(
      "p3d::kernels::write_product", exec, static_cast<std::int64_t>(g.extent(0)), KOKKOS_LAMBDA(std::int64_t row) {
        for (std::int64_t c = 0; c < columns; ++c) put(g(row, c), factor * product_at(p, q, row, c));
      });
}

template <class A>
void subtract_product(ExecSpace const& exec, A factor, View2<A const> p, View2<A const> q, View2<A> m) {
  auto const columns = static_cast<std::int64_t>(m.extent(1));
  for_each_number(
      "p3d::kernels::subtract_product", exec, static_cast<std::int64_t>(m.extent(0)), KOKKOS_LAMBDA(std::int64_t row) {
        for (std::int64_t c = 0; c < columns; ++c) m(row, c) -= factor * product_at(p, q, row, c);
      });
}

#define P3D_INSTANTIATE(G)                                                                \
  template void add_scaled<G>(ExecSpace const&, Acc<G>, View1<G const>, View1<Acc<G>>);   \
  template void write_scaled<G>(ExecSpace const&, Acc<G>, View1<Acc<G> const>, View1<G>); \
  template void write_product<G>(ExecSpace const&, Acc<G>, View2<Acc<G> const>, View2<Acc<G> const>, View2<G>);
P3D_GRADIENT_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(A)                                                                                        \
  template void add_left<A>(ExecSpace const&, View2<A const>, View2<A const>, View2<A>);                          \
  template void add_right<A>(ExecSpace const&, View2<A const>, View2<A const>, View2<A>);                         \
  template void dot_products<A>(ExecSpace const&, View2<A const>, bool, int, View1<A>);                           \
  template void square_norms<A>(ExecSpace const&, View2<A const>, bool, View1<A>);                                \
  template void orthogonalise<A>(ExecSpace const&, View2<A>, bool, int, View1<A const>, View1<A const>);          \
  template void draw_zero_rows<A>(ExecSpace const&, base::RandomKey, std::uint64_t, std::int64_t, View1<A const>, \
                                  View2<A>);                                                                      \
  template void subtract_product<A>(ExecSpace const&, A, View2<A const>, View2<A const>, View2<A>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
