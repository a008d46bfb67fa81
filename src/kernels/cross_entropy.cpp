// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/cross_entropy.hpp>

#include "block_sum.hpp"

#include <limits>

namespace p3d::kernels {

namespace {
/// Columns of a row that are walked twice, for their maximum and for their sum. On the host they stay in the first
/// cache.
constexpr std::int64_t block_columns = on_host ? 2048 : std::numeric_limits<std::int64_t>::max();
}  // namespace

template <class T>
void logits_parts(ExecSpace const& exec, View2<T const> logits, std::int64_t valid_cols, std::int64_t vocab_begin,
                  View1<int const> targets, View1<T> local_max, View1<T> row_max, View2<T> sums) {
  for_rows(
      "p3d::kernels::logits_parts", exec, logits.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        T const* const x = logits.data() + r * logits.stride(0);
        T top = -infinity<T>;
        Acc<T> sum = 0;
        for (std::int64_t begin = 0, n = 0; begin < valid_cols; begin += n) {
          n = valid_cols - begin < block_columns ? valid_cols - begin : block_columns;
          T const* const b = x + begin;
          T const now = max_of<T>(team, n, top, [=](std::int64_t i) { return b[i]; });
          if (begin > 0) sum *= exp_of(top - now);
          top = now;
          sum += sum_of<Acc<T>>(team, n, [=](std::int64_t i) { return exp_of(b[i] - now); });
        }
        once(team, [&] {
          std::int64_t const target = targets(r) - vocab_begin;
          local_max(r) = row_max(r) = top;
          sums(0, r) = sum;
          sums(1, r) = targets(r) >= 0 && target >= 0 && target < valid_cols ? x[target] : T(0);
        });
      });
}

template <class T>
void refer_sums(ExecSpace const& exec, View1<T const> local_max, View1<T const> row_max, View2<T> sums) {
  for_chunks<flat_width>(
      "p3d::kernels::refer_sums", exec, 1, row_max.extent(0), KOKKOS_LAMBDA(std::int64_t, std::int64_t r, int n) {
        for (int i = 0; i < n; ++i) sums(0, r + i) *= exp_of(local_max(r + i) - row_max(r + i));
      });
}

template <class T>
double cross_entropy_loss(ExecSpace const& exec, View1<int const> targets, View1<T const> row_max, View2<T const> sums,
                          View1<T> lse) {
  for_chunks<flat_width>(
      "p3d::kernels::log_sum_exp", exec, 1, lse.extent(0), KOKKOS_LAMBDA(std::int64_t, std::int64_t r, int n) {
        for (int i = 0; i < n; ++i) lse(r + i) = row_max(r + i) + std::log(sums(0, r + i));
      });
  return block_sum(
      "p3d::kernels::cross_entropy_loss", exec, lse.extent(0), KOKKOS_LAMBDA(std::int64_t r) {
        return targets(r) < 0 ? 0.0 : static_cast<double>(lse(r)) - static_cast<double>(sums(1, r));
      });
}

template <class T>
void cross_entropy_backward(ExecSpace const& exec, View1<int const> targets, View1<T const> lse,
                            std::int64_t valid_cols, std::int64_t vocab_begin, T scale, View2<T> logits) {
  auto const cols = static_cast<std::int64_t>(logits.extent(1));
  for_chunks<element_width>(
      "p3d::kernels::cross_entropy_backward", exec, logits.extent(0), cols,
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T* const x = &logits(r, c);
        bool const counts = targets(r) >= 0;
        std::int64_t const left = counts ? valid_cols - c : 0;
        int const valid = static_cast<int>(left < 0 ? 0 : (left < n ? left : n));
        T const shift = lse(r);
        P3D_SIMD
        for (int i = 0; i < valid; ++i) x[i] = scale * exp_of(x[i] - shift);
        for (int i = valid; i < n; ++i) x[i] = T(0);
        std::int64_t const target = targets(r) - vocab_begin - c;
        if (counts && target >= 0 && target < valid) x[target] -= scale;
      });
}

#define P3D_INSTANTIATE(T)                                                                                             \
  template void logits_parts<T>(ExecSpace const&, View2<T const>, std::int64_t, std::int64_t, View1<int const>,        \
                                View1<T>, View1<T>, View2<T>);                                                         \
  template void refer_sums<T>(ExecSpace const&, View1<T const>, View1<T const>, View2<T>);                             \
  template double cross_entropy_loss<T>(ExecSpace const&, View1<int const>, View1<T const>, View2<T const>, View1<T>); \
  template void cross_entropy_backward<T>(ExecSpace const&, View1<int const>, View1<T const>, std::int64_t,            \
                                          std::int64_t, T, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
