// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/embedding.hpp>

#include "launch.hpp"

namespace p3d::kernels {

template <class T>
void embedding_forward(ExecSpace const& exec, View1<int const> tokens, View2<T const> weight, std::int64_t vocab_begin,
                       View2<T> out) {
  auto const vocabulary = static_cast<std::int64_t>(weight.extent(0));
  for_chunks<element_width>(
      "p3d::kernels::embedding_forward", exec, out.extent(0), out.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        std::int64_t const token = tokens(r) - vocab_begin;
        T* const y = &out(r, c);
        if (token >= 0 && token < vocabulary) {
          T const* const w = &weight(token, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) y[i] = w[i];
        } else {
          P3D_SIMD
          for (int i = 0; i < n; ++i) y[i] = T(0);
        }
      });
}

// Some columns to each thread, all rows in order: a repeated token is no race, and the order of the sum is fixed.
template <class T>
void embedding_backward(ExecSpace const& exec, View1<int const> tokens, View2<T const> dout, std::int64_t vocab_begin,
                        View2<T> dweight) {
  auto const vocabulary = static_cast<std::int64_t>(dweight.extent(0));
  auto const rows = static_cast<std::int64_t>(dout.extent(0));
  for_chunks<column_width>(
      "p3d::kernels::embedding_backward", exec, 1, dout.extent(1), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        for (std::int64_t r = 0; r < rows; ++r) {
          std::int64_t const token = tokens(r) - vocab_begin;
          if (token < 0 || token >= vocabulary) continue;
          T const* const g = &dout(r, c);
          T* const dw = &dweight(token, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) dw[i] += g[i];
        }
      });
}

template <class T>
void position_forward(ExecSpace const& exec, TokenRows rows, View2<T const> positions, std::int64_t token_offset,
                      View2<T> out) {
  for_chunks<element_width>(
      "p3d::kernels::position_forward", exec, out.extent(0), out.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T const* const p = &positions(r % rows.seq_len + token_offset, c);
        T* const y = &out(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) y[i] += p[i];
      });
}

template <class T>
void position_backward(ExecSpace const& exec, TokenRows rows, View2<T const> dout, std::int64_t token_offset,
                       View2<T> dpositions) {
  for_chunks<element_width>(
      "p3d::kernels::position_backward", exec, rows.seq_len, dout.extent(1),
      KOKKOS_LAMBDA(std::int64_t position, std::int64_t c, int n) {
        T* const dp = &dpositions(position + token_offset, c);
        for (std::int64_t sample = 0; sample < rows.samples; ++sample) {
          T const* const g = &dout(sample * rows.seq_len + position, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) dp[i] += g[i];
        }
      });
}

#define P3D_INSTANTIATE(T)                                                                                         \
  template void embedding_forward<T>(ExecSpace const&, View1<int const>, View2<T const>, std::int64_t, View2<T>);  \
  template void embedding_backward<T>(ExecSpace const&, View1<int const>, View2<T const>, std::int64_t, View2<T>); \
  template void position_forward<T>(ExecSpace const&, TokenRows, View2<T const>, std::int64_t, View2<T>);          \
  template void position_backward<T>(ExecSpace const&, TokenRows, View2<T const>, std::int64_t, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
