// SPDX-License-Identifier: Apache-2.0
// Token and position embedding. Backward adds several rows to one row of the table where a token repeats; rows are
// added in order by one thread for each element, so the result is the same on every backend.
#include <p3d/kernels/embedding.hpp>

#include "column_sum.hpp"
#include "wide.hpp"

namespace p3d::kernels {

template <class S>
void embedding_forward(ExecSpace const& exec, View1<int const> tokens, View2<S const> weight, std::int64_t vocab_begin,
                       View2<S> out) {
  auto const vocabulary = static_cast<std::int64_t>(weight.extent(0));
  for_chunks<wide<S>>(
      "p3d::kernels::embedding_forward", exec, out.extent(0), out.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        std::int64_t const token = tokens(r) - vocab_begin;
        auto y = write<wide<S>>(&out(r, c), n);
        if (token >= 0 && token < vocabulary) {
          auto const w = read<wide<S>>(&weight(token, c), n);
          P3D_SIMD
          for (int i = 0; i < lanes<wide<S>>(n); ++i) put(y[i], w[i]);
        } else {
          P3D_SIMD
          for (int i = 0; i < lanes<wide<S>>(n); ++i) put(y[i], Acc<S>(0));
        }
        y.store();
      });
}

// Each thread adds some columns of all rows in order, so a repeated token is no race and the order of the sum is fixed.
template <class S, class G>
void embedding_backward(ExecSpace const& exec, View1<int const> tokens, View2<S const> dout, std::int64_t vocab_begin,
                        Given<View2<G>> dweight) {
  auto const vocabulary = static_cast<std::int64_t>(dweight.extent(0));
  auto const rows = static_cast<std::int64_t>(dout.extent(0));
  if constexpr (!on_host) {
    auto const key = KOKKOS_LAMBDA(std::int64_t r) {
      std::int64_t const token = tokens(r) - vocab_begin;
      return token < vocabulary ? token : std::int64_t(-1);
    };
    auto const from = KOKKOS_LAMBDA(std::int64_t r, std::int64_t c) { return dout(r, c); };
    auto const to = KOKKOS_LAMBDA(std::int64_t token, std::int64_t c)->G& { return dweight(token, c); };
    auto const cols = static_cast<std::int64_t>(dout.extent(1));
    // Devices order the rows by token first; where there are too many rows to sort they do as the host does.
    if (add_by_key("p3d::kernels::embedding_backward", exec, rows, cols, key, from, to)) return;
  }
  for_vector<column_width>(
      "p3d::kernels::embedding_backward", exec, dout.extent(1), KOKKOS_LAMBDA(std::int64_t c, int n) {
        for (std::int64_t r = 0; r < rows; ++r) {
          std::int64_t const token = tokens(r) - vocab_begin;
          if (token < 0 || token >= vocabulary) continue;
          S const* const g = &dout(r, c);
          G* const dw = &dweight(token, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) dw[i] = static_cast<G>(dw[i] + g[i]);
        }
      });
}

template <class S>
void position_forward(ExecSpace const& exec, TokenRows const& rows, View2<S const> positions, View2<S> out) {
  auto const places = rows.positions;
  bool const given = places.extent(0) > 0;
  auto const first_row = rows.first_row;
  for_chunks<wide<S>>(
      "p3d::kernels::position_forward", exec, out.extent(0), out.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        auto const p = read<wide<S>>(&positions(given ? places(first_row + r) : rows.index(r), c), n);
        auto const old = read<wide<S>>(&out(r, c), n);
        auto y = write<wide<S>>(&out(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(y[i], old[i] + p[i]);
        y.store();
      });
}

template <class S, class G>
void position_backward(ExecSpace const& exec, TokenRows const& rows, View2<S const> dout, Given<View2<G>> dpositions) {
  P3D_REQUIRE(rows.positions.extent(0) > 0 || rows.tokens.size() == 0, "divided samples have positions");
  auto const here = static_cast<std::int64_t>(dout.extent(0));
  auto const samples = rows.samples, first_row = rows.first_row, seq_len = rows.seq_len;
  if (auto const places = rows.positions; places.extent(0) > 0) {
    // A repeated position is no race, as in embedding_backward.
    if constexpr (!on_host) {
      auto const key = KOKKOS_LAMBDA(std::int64_t row) { return places(first_row + row); };
      auto const from = KOKKOS_LAMBDA(std::int64_t row, std::int64_t c) { return dout(row, c); };
      auto const to = KOKKOS_LAMBDA(std::int64_t place, std::int64_t c)->G& { return dpositions(place, c); };
      auto const cols = static_cast<std::int64_t>(dout.extent(1));
      if (add_by_key("p3d::kernels::position_backward", exec, here, cols, key, from, to)) return;
    }
    for_vector<column_width>(
        "p3d::kernels::position_backward", exec, dout.extent(1), KOKKOS_LAMBDA(std::int64_t c, int n) {
          for (std::int64_t row = 0; row < here; ++row) {
            S const* const g = &dout(row, c);
            G* const dp = &dpositions(places(first_row + row), c);
            P3D_SIMD
            for (int i = 0; i < n; ++i) dp[i] = static_cast<G>(dp[i] + g[i]);
          }
        });
    return;
  }
  for_chunks<element_width>(
      "p3d::kernels::position_backward", exec, seq_len, dout.extent(1),
      KOKKOS_LAMBDA(std::int64_t position, std::int64_t c, int n) {
        G* const dp = &dpositions(position, c);
        for (std::int64_t sample = 0; sample < samples; ++sample) {
          std::int64_t const row = sample * seq_len + position - first_row;
          if (row < 0 || row >= here) continue;
          S const* const g = &dout(row, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) dp[i] = static_cast<G>(dp[i] + g[i]);
        }
      });
}

#define P3D_INSTANTIATE(S)                                                                                        \
  template void embedding_forward<S>(ExecSpace const&, View1<int const>, View2<S const>, std::int64_t, View2<S>); \
  template void position_forward<S>(ExecSpace const&, TokenRows const&, View2<S const>, View2<S>);                \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G)                                                                                \
  template void embedding_backward<S, G>(ExecSpace const&, View1<int const>, View2<S const>, std::int64_t, View2<G>); \
  template void position_backward<S, G>(ExecSpace const&, TokenRows const&, View2<S const>, View2<G>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
P3D_INSTANTIATE_GRADIENT(bfloat16, bfloat16)
#undef P3D_INSTANTIATE_GRADIENT
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
