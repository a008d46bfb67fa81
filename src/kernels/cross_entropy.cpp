#include <p3d/kernels/cross_entropy.hpp>

#include "block_sum.hpp"

#include <limits>

namespace p3d::kernels {

template <class T>
void logits_max(ExecSpace const& exec, View2<T const> logits, std::int64_t valid_cols, View1<T> row_max) {
  for_rows("p3d::kernels::logits_max", exec, logits.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
    T const* const x = logits.data() + r * logits.stride(0);
    T const m = max_of<T>(team, valid_cols, -infinity<T>, [=](std::int64_t i) { return x[i]; });
    once(team, [&] { row_max(r) = m; });
  });
}

template <class T>
void logits_sums(ExecSpace const& exec, View2<T const> logits, std::int64_t valid_cols, std::int64_t vocab_begin,
                 View1<int const> targets, View1<T const> row_max, View2<T> sums) {
  for_rows("p3d::kernels::logits_sums", exec, logits.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
    T const* const x = logits.data() + r * logits.stride(0);
    T const m = row_max(r);
    Acc<T> const sum = sum_of<Acc<T>>(team, valid_cols, [=](std::int64_t i) { return exp_of(x[i] - m); });
    once(team, [&] {
      std::int64_t const target = targets(r) - vocab_begin;
      sums(0, r) = sum;
      sums(1, r) = targets(r) >= 0 && target >= 0 && target < valid_cols ? x[target] : T(0);
    });
  });
}

template <class T>
double cross_entropy_loss(ExecSpace const& exec, View1<int const> targets, View1<T const> row_max, View2<T const> sums,
                          View1<T> lse) {
  for_chunks<flat_width>("p3d::kernels::log_sum_exp", exec, 1, lse.extent(0),
                         KOKKOS_LAMBDA(std::int64_t, std::int64_t r, int n) {
                           for (int i = 0; i < n; ++i) lse(r + i) = row_max(r + i) + std::log(sums(0, r + i));
                         });
  return block_sum("p3d::kernels::cross_entropy_loss", exec, lse.extent(0), KOKKOS_LAMBDA(std::int64_t r) {
    return targets(r) < 0 ? 0.0 : static_cast<double>(lse(r)) - static_cast<double>(sums(1, r));
  });
}

template <class T>
void cross_entropy_backward(ExecSpace const& exec, View1<int const> targets, View1<T const> lse, std::int64_t valid_cols,
                            std::int64_t vocab_begin, T scale, View2<T> logits) {
  auto const cols = static_cast<std::int64_t>(logits.extent(1));
  for_chunks<element_width>("p3d::kernels::cross_entropy_backward", exec, logits.extent(0), cols,
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
  template void logits_max<T>(ExecSpace const&, View2<T const>, std::int64_t, View1<T>);                               \
  template void logits_sums<T>(ExecSpace const&, View2<T const>, std::int64_t, std::int64_t, View1<int const>,         \
                               View1<T const>, View2<T>);                                                              \
  template double cross_entropy_loss<T>(ExecSpace const&, View1<int const>, View1<T const>, View2<T const>, View1<T>); \
  template void cross_entropy_backward<T>(ExecSpace const&, View1<int const>, View1<T const>, std::int64_t,            \
                                          std::int64_t, T, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)

}  // namespace p3d::kernels
