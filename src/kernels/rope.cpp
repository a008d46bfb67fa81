// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/rope.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>

#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// Cosine and sine of an angle.
template <class S>
struct Turn {
  double cosine, sine;
  KOKKOS_INLINE_FUNCTION static Turn of(double angle) {
    // On a GPU each part of the heads has its angles computed once more, in double. For 16 bits whole turns are taken
    // off in double, and the rest is a float: 1e-7 away.
    if constexpr (!on_host && sizeof(S) == 2) {
      constexpr double turn = 6.283185307179586476925;
      auto const rest = static_cast<float>(angle - turn * std::rint(angle * (1 / turn)));
      return {static_cast<double>(std::cos(rest)), static_cast<double>(std::sin(rest))};
    } else {
      return {std::cos(angle), std::sin(angle)};
    }
  }
};

}  // namespace

template <class S>
void rope(ExecSpace const& exec, TokenRows const& rows, RopeShape const& shape, View2<double const> frequencies,
          Rotation rotation, View2<S> x) {
  auto const half = static_cast<std::int64_t>(frequencies.extent(1)), heads = shape.heads, head_dim = shape.head_dim;
  P3D_REQUIRE(2 * half <= head_dim, "a head has the dimensions of all pairs");
  bool const neighbours = shape.pairs == RopePairs::neighbours;
  std::int64_t const second_from = frequencies.extent(0) > 1 ? shape.second_set_from : RopeShape{}.second_set_from;
  double const beta = shape.query_beta;
  std::int64_t const queries = beta > 0 ? shape.query_heads : 0, length = shape.query_length;
  double const factor = shape.factor, sign = rotation == Rotation::forward ? factor : -factor;
  // One call computes the angles of some pairs at one position, for all samples (if they have the same positions) and
  // heads: sine and cosine cost more than the rotations. Angles are double: position times frequency must keep its
  // fraction.
  auto const positions = rows.positions;
  bool const given = positions.extent(0) > 0;
  std::int64_t const places = given ? rows.rows() : rows.seq_len, samples = given ? 1 : rows.samples;
  // A device has more threads than there are angles: the heads are cut into parts, each with the angles once more.
  std::int64_t const wanted = on_host || places * half == 0 ? 1 : device_threads * wide<S> / (places * half) + 1;
  std::int64_t const parts = std::max<std::int64_t>(1, std::min(heads, wanted));
  for_chunks<wide<S>>(
      "p3d::kernels::rope", exec, places * parts, half, KOKKOS_LAMBDA(std::int64_t row, std::int64_t pair, int n) {
        using A = Acc<S>;
        constexpr int W = wide<S>;
        std::int64_t const part = parts == 1 ? 0 : row / places, place = row - part * places;
        std::int64_t const first_head = part * heads / parts, last_head = (part + 1) * heads / parts;
        A cosine[W], sine[W];
        std::int64_t const position = given ? positions(place) : place;
        auto const frequency = read<W>(&frequencies(position < second_from ? 0 : 1, pair), n);
        A const more =
            queries > 0 ? static_cast<A>(1.0 + beta * std::log1p(static_cast<double>(position / length))) : A(1);
        P3D_UNROLL
        for (int i = 0; i < lanes<W>(n); ++i) {
          auto const [c, s] = Turn<S>::of(static_cast<double>(position) * frequency[i]);
          cosine[i] = static_cast<A>(factor * c);
          sine[i] = static_cast<A>(sign * s);
        }
        for (std::int64_t sample = 0; sample < samples; ++sample)
          for (std::int64_t head = first_head; head < last_head; ++head) {
            A const by = head < queries ? more : A(1);
            S* const dimensions = &x(sample * places + place, head * head_dim);
            if (neighbours) {
              for (int i = 0; i < n; ++i) {
                S* const two = dimensions + 2 * (pair + i);
                A const u = two[0], v = two[1];
                two[0] = static_cast<S>(by * (u * cosine[i] - v * sine[i]));
                two[1] = static_cast<S>(by * (v * cosine[i] + u * sine[i]));
              }
              continue;
            }
            S* const a = dimensions + pair;
            auto const from_a = read<W>(a, n), from_b = read<W>(a + half, n);
            auto to_a = write<W>(a, n), to_b = write<W>(a + half, n);
            P3D_SIMD
            for (int i = 0; i < lanes<W>(n); ++i) {
              A const u = from_a[i], v = from_b[i];
              put(to_a[i], by * (u * cosine[i] - v * sine[i]));
              put(to_b[i], by * (v * cosine[i] + u * sine[i]));
            }
            to_a.store();
            to_b.store();
          }
      });
}

#define P3D_INSTANTIATE(S) \
  template void rope<S>(ExecSpace const&, TokenRows const&, RopeShape const&, View2<double const>, Rotation, View2<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
