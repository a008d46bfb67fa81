// SPDX-License-Identifier: Apache-2.0
// The rank-local parts of the cross entropy over a vocabulary shard. Reductions over shards lie between them
// (parallel::VocabLoss): logits_parts of each shard, the maximum over shards, refer_sums, the sums over shards,
// cross_entropy_loss; later cross_entropy_backward turns the logits into their gradient in place.
//
// Example: two shards with maxima 3 and 5 and sums of exponentials 2 and 4 have lse = 5 + log(2 exp(3 - 5) + 4).
#include <p3d/kernels/cross_entropy.hpp>

#include "block_sum.hpp"
#include "wide.hpp"

#include <limits>

namespace p3d::kernels {

namespace {
/// The number of columns of a row that are walked twice in turn, for their maximum and for their sum. On the host they
/// stay in the first-level cache.
constexpr std::int64_t block_columns = on_host ? 2048 : std::numeric_limits<std::int64_t>::max();
}  // namespace

template <class S>
void logits_parts(ExecSpace const& exec, View2<S const> logits, std::int64_t valid_cols, std::int64_t vocab_begin,
                  View1<int const> targets, View1<Acc<S>> local_max, View1<Acc<S>> row_max, View2<Acc<S>> sums) {
  for_rows(
      "p3d::kernels::logits_parts", exec, logits.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        using A = Acc<S>;
        S const* const x = logits.data() + r * logits.stride(0);
        A top = -infinity<A>;
        A sum = 0;
        for (std::int64_t begin = 0, n = 0; begin < valid_cols; begin += n) {
          n = valid_cols - begin < block_columns ? valid_cols - begin : block_columns;
          S const* const b = x + begin;
          A const now = max_row<A>(
              team, n, top, [](S v) { return static_cast<A>(v); }, b);
          // The sum so far refers to the old maximum; it is rescaled to the new one.
          if (begin > 0) sum *= exp_of(top - now);
          top = now;
          sum += sum_row<A>(
              team, n, [=](S v) { return exp_of(v - now); }, b);
        }
        once(team, [&] {
          std::int64_t const target = targets(r) - vocab_begin;
          local_max(r) = row_max(r) = top;
          sums(0, r) = sum;
          sums(1, r) = targets(r) >= 0 && target >= 0 && target < valid_cols ? static_cast<A>(x[target]) : A(0);
        });
      });
}

template <class A>
void refer_sums(ExecSpace const& exec, View1<A const> local_max, View1<A const> row_max, View2<A> sums) {
  for_vector<flat_width>(
      "p3d::kernels::refer_sums", exec, row_max.extent(0), KOKKOS_LAMBDA(std::int64_t r, int n) {
        for (int i = 0; i < n; ++i) sums(0, r + i) *= exp_of(local_max(r + i) - row_max(r + i));
      });
}

template <class A>
void combine_parts(ExecSpace const& exec, int shards, View1<A const> parts, View1<A> row_max, View2<A> sums) {
  auto const rows = static_cast<std::int64_t>(row_max.extent(0));
  P3D_REQUIRE(static_cast<std::int64_t>(parts.extent(0)) == 3 * shards * rows, "each shard has three numbers of a row");
  for_vector<flat_width>(
      "p3d::kernels::combine_parts", exec, rows, KOKKOS_LAMBDA(std::int64_t c, int n) {
        for (std::int64_t r = c; r < c + n; ++r) {
          A top = -infinity<A>, sum = 0, target = 0;
          for (int s = 0; s < shards; ++s) {
            A const own = parts(3 * s * rows + r);
            top = own > top ? own : top;
          }
          for (int s = 0; s < shards; ++s) {
            A const* const own = &parts(3 * s * rows + r);
            if (own[0] > -infinity<A>) sum += own[rows] * exp_of(own[0] - top);
            target += own[2 * rows];
          }
          row_max(r) = top;
          sums(0, r) = sum;
          sums(1, r) = target;
        }
      });
}

template <class A>
void cross_entropy_loss(ExecSpace const& exec, View1<int const> targets, View1<A const> row_max, View2<A const> sums,
                        View1<A> lse, View1<double> total) {
  for_vector<flat_width>(
      "p3d::kernels::log_sum_exp", exec, lse.extent(0), KOKKOS_LAMBDA(std::int64_t r, int n) {
        for (int i = 0; i < n; ++i) lse(r + i) = row_max(r + i) + std::log(sums(0, r + i));
      });
  if (total.extent(0) == 0) return;
  add_block_sum(
      "p3d::kernels::cross_entropy_loss", exec, lse.extent(0),
      KOKKOS_LAMBDA(std::int64_t r) {
        return targets(r) < 0 ? 0.0 : static_cast<double>(lse(r)) - static_cast<double>(sums(1, r));
      },
      total);
}

template <class S>
void cap_logits(ExecSpace const& exec, double cap, View2<S> logits) {
  if (cap == 0.0) return;
  auto const most = static_cast<Acc<S>>(cap);
  for_chunks<wide<S>>(
      "p3d::kernels::cap_logits", exec, logits.extent(0), static_cast<std::int64_t>(logits.extent(1)),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        auto const in = read<wide<S>>(&logits(r, c), n);
        auto out = write<wide<S>>(&logits(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], soft_cap(Acc<S>(in[i]), most));
        out.store();
      });
}

namespace {

/// The gradient of a chunk of logits, of which those of capped logits have one factor more.
template <class S, bool capped>
struct LogitsGradient {
  using A = Acc<S>;
  View1<int const> targets;
  View1<A const> lse;
  std::int64_t valid_cols, vocab_begin;
  A scale, cap;
  View2<S> logits;

  /// d times the derivative of the cap that left the logit x.
  KOKKOS_FORCEINLINE_FUNCTION static A before_cap(A d, [[maybe_unused]] A x, [[maybe_unused]] A cap) {
    if constexpr (capped)
      return d * soft_cap_slope(x, cap);
    else
      return d;
  }

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t r, std::int64_t c, int n) const {
    S* const x = &logits(r, c);
    bool const counts = targets(r) >= 0;
    std::int64_t const left = counts ? valid_cols - c : 0;
    int const valid = static_cast<int>(left < 0 ? 0 : (left < n ? left : n));
    A const shift = lse(r), factor = scale, most = cap;
    std::int64_t const target = targets(r) - vocab_begin - c;
    bool const hit = counts && target >= 0 && target < valid;
    // The target's number is computed from its exponential, not from a rounded result: near a certain token the two
    // parts nearly cancel.
    if constexpr (on_host) {
      A const logit = hit ? static_cast<A>(x[target]) : A(0);
      P3D_SIMD
      for (int i = 0; i < valid; ++i) put(x[i], before_cap(factor * exp_of(x[i] - shift), static_cast<A>(x[i]), most));
      for (int i = valid; i < n; ++i) put(x[i], A(0));
      if (!hit) return;
      if constexpr (std::is_same_v<S, A>)
        x[target] -= before_cap(factor, logit, most);
      else
        put(x[target], before_cap(factor * (exp_of(logit - shift) - A(1)), logit, most));
    } else {
      constexpr int W = wide<S>;
      auto const in = read<W>(x, n);
      auto out = write<W>(x, n);
      for (int i = 0; i < W; ++i) {
        A const e = exp_of(in[i] - shift);
        A const d = factor * (hit && i == target ? e - A(1) : e);
        put(out[i], i >= valid ? A(0) : before_cap(d, static_cast<A>(in[i]), most));
      }
      out.store();
    }
  }
};

}  // namespace

template <class S>
void cross_entropy_backward(ExecSpace const& exec, View1<int const> targets, View1<Acc<S> const> lse,
                            std::int64_t valid_cols, std::int64_t vocab_begin, Acc<S> scale, View2<S> logits,
                            double cap) {
  auto const rows = static_cast<std::int64_t>(logits.extent(0)), cols = static_cast<std::int64_t>(logits.extent(1));
  auto const most = static_cast<Acc<S>>(cap);
  char const* const label = "p3d::kernels::cross_entropy_backward";
  if (cap > 0)
    for_chunks<wide<S>>(label, exec, rows, cols,
                        LogitsGradient<S, true>{targets, lse, valid_cols, vocab_begin, scale, most, logits});
  else
    for_chunks<wide<S>>(label, exec, rows, cols,
                        LogitsGradient<S, false>{targets, lse, valid_cols, vocab_begin, scale, most, logits});
}

#define P3D_INSTANTIATE(A)                                                                                          \
  template void refer_sums<A>(ExecSpace const&, View1<A const>, View1<A const>, View2<A>);                          \
  template void combine_parts<A>(ExecSpace const&, int, View1<A const>, View1<A>, View2<A>);                        \
  template void cross_entropy_loss<A>(ExecSpace const&, View1<int const>, View1<A const>, View2<A const>, View1<A>, \
                                      View1<double>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(S)                                                                                       \
  template void logits_parts<S>(ExecSpace const&, View2<S const>, std::int64_t, std::int64_t, View1<int const>,  \
                                View1<Acc<S>>, View1<Acc<S>>, View2<Acc<S>>);                                    \
  template void cross_entropy_backward<S>(ExecSpace const&, View1<int const>, View1<Acc<S> const>, std::int64_t, \
                                          std::int64_t, Acc<S>, View2<S>, double);                               \
  template void cap_logits<S>(ExecSpace const&, double, View2<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
