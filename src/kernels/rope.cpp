// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/rope.hpp>

#include <p3d/base/error.hpp>

#include "launch.hpp"

namespace p3d::kernels {

template <class T>
void rope(ExecSpace const& exec, TokenRows rows, std::int64_t heads, std::int64_t head_dim, double theta,
          std::int64_t token_offset, Rotation rotation, View2<T> x) {
  P3D_REQUIRE(head_dim % 2 == 0, "rotary embedding pairs dimensions: head_dim must be even");
  std::int64_t const half = head_dim / 2;
  double const step = -2.0 * std::log(theta) / static_cast<double>(head_dim);
  double const sign = rotation == Rotation::forward ? 1.0 : -1.0;
  // One call computes the angles of some pairs at one position, for all samples and heads: sine and cosine cost more
  // than the rotations. Angles are double: position times frequency must keep its fraction.
  for_chunks<element_width>(
      "p3d::kernels::rope", exec, rows.seq_len, half, KOKKOS_LAMBDA(std::int64_t position, std::int64_t pair, int n) {
        T cosine[element_width], sine[element_width];
        for (int i = 0; i < n; ++i) {
          double const angle =
              static_cast<double>(token_offset + position) * std::exp(step * static_cast<double>(pair + i));
          cosine[i] = static_cast<T>(std::cos(angle));
          sine[i] = static_cast<T>(sign * std::sin(angle));
        }
        for (std::int64_t sample = 0; sample < rows.samples; ++sample)
          for (std::int64_t head = 0; head < heads; ++head) {
            T* const a = &x(sample * rows.seq_len + position, head * head_dim + pair);
            T* const b = a + half;
            P3D_SIMD
            for (int i = 0; i < n; ++i) {
              T const u = a[i], v = b[i];
              a[i] = u * cosine[i] - v * sine[i];
              b[i] = v * cosine[i] + u * sine[i];
            }
          }
      });
}

template void rope<float>(ExecSpace const&, TokenRows, std::int64_t, std::int64_t, double, std::int64_t, Rotation,
                          View2<float>);
template void rope<double>(ExecSpace const&, TokenRows, std::int64_t, std::int64_t, double, std::int64_t, Rotation,
                           View2<double>);

}  // namespace p3d::kernels
