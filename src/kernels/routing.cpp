// SPDX-License-Identifier: Apache-2.0
// The router of a mixture-of-experts layer. route_forward scores each token against each expert, chooses top_k experts
// and computes their gates; route_backward turns gradients of the gates, of a balance loss and of the z-loss into
// gradients of the logits. One team (on the host one thread) computes the scores of a token, one thread its choice.
//
// Example: top_k = 2, softmax, normalize: scores 0.1, 0.5, 0.1, 0.3 choose experts 1 and 3 with gates 0.625 and 0.375.
#include <p3d/kernels/routing.hpp>

#include "launch.hpp"

namespace p3d::kernels {

namespace {

/// Added to the sum of gates before the division by it, as DeepSeek does: all scores may be zero.
constexpr double least_sum = 1e-20;

/// Waits for the team between writes of all experts' gradients and additions to some of them.
KOKKOS_INLINE_FUNCTION void barrier(Alone const&) {}
template <class Team>
KOKKOS_INLINE_FUNCTION void barrier(Team const& team) {
  team.team_barrier();
}

/// The keys by which a token chooses: score + bias of each expert; NaN counts as -infinity.
template <class A>
struct Keys {
  A const* scores;
  A const* bias;  ///< [experts], or null
  KOKKOS_INLINE_FUNCTION A operator()(int expert) const {
    A const key = bias == nullptr ? scores[expert] : scores[expert] + bias[expert];
    return key == key ? key : -infinity<A>;
  }
};

/// The value of experts [begin, begin + size) as a group: their largest key, or with `two` the sum of their two
/// largest.
template <class A>
KOKKOS_INLINE_FUNCTION A group_value(Keys<A> const& key, int begin, int size, bool two) {
  A first = -infinity<A>, second = -infinity<A>;
  for (int i = 0; i < size; ++i) {
    A const x = key(begin + i);
    if (x > first) {
      second = first;
      first = x;
    } else if (x > second) {
      second = x;
    }
  }
  return two && size > 1 ? first + second : first;
}

/// The groups that a token may choose from, one bit for each.
template <class A>
KOKKOS_INLINE_FUNCTION std::uint64_t best_groups(Keys<A> const& key, Routing const& r) {
  if (r.group_top_k == r.groups) return ~std::uint64_t(0);
  A value[most_expert_groups];
  int const size = r.experts / r.groups;
  for (int g = 0; g < r.groups; ++g) value[g] = group_value(key, g * size, size, r.score == Score::sigmoid);
  std::uint64_t chosen = 0;
  for (int n = 0; n < r.group_top_k; ++n) {
    int best = -1;
    for (int g = 0; g < r.groups; ++g)
      if ((chosen >> g & 1) == 0 && (best < 0 || value[g] > value[best])) best = g;
    chosen |= std::uint64_t(1) << best;
  }
  return chosen;
}

/// Writes the best top_k experts of the groups to `choice`, best first. It is an insertion sort from the lowest expert
/// on, so equal keys keep the order of the experts.
template <class A>
KOKKOS_INLINE_FUNCTION void choose(Keys<A> const& key, Routing const& r, std::uint64_t groups, int* choice) {
  int const size = r.experts / r.groups;
  int found = 0;
  for (int e = 0; e < r.experts; ++e) {
    if ((groups >> (e / size) & 1) == 0) continue;
    A const x = key(e);
    // An expert that is not better than the last choice cannot enter a full list.
    if (found == r.top_k && !(x > key(choice[found - 1]))) continue;
    int k = found < r.top_k ? found++ : found - 1;
    for (; k > 0 && x > key(choice[k - 1]); --k) choice[k] = choice[k - 1];
    choice[k] = e;
  }
}

/// The factor of a token's gates, the same for all its slots: gate = factor * score.
template <class A>
KOKKOS_INLINE_FUNCTION A gate_factor(Routing const& r, A const* scores, int const* choice) {
  A const scale = static_cast<A>(r.scale);
  if (!r.normalize) return scale;
  A sum = 0;
  for (int k = 0; k < r.top_k; ++k) sum += scores[choice[k]];
  return scale / (sum + static_cast<A>(least_sum));
}

/// Writes the scores, their sum and the logits' log-sum-exp of every token.
template <class A>
void score(ExecSpace const& exec, bool softmax, View2<A const> logits, RouterScores<A> const& saved) {
  auto const scores = saved.scores;
  auto const lse = saved.lse, total = saved.total;
  auto const experts = static_cast<std::int64_t>(logits.extent(1));
  for_rows(
      "p3d::kernels::router_scores", exec, logits.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t t) {
        A const* const x = &logits(t, 0);
        A* const s = &scores(t, 0);
        A const top = max_of<A>(team, experts, -infinity<A>, [=](std::int64_t e) { return x[e]; });
        A const sum = sum_of<A>(team, experts, [=](std::int64_t e) { return exp_of(x[e] - top); });
        A all = 1;
        if (softmax) {
          each(team, experts, [=](std::int64_t e) { s[e] = exp_of(x[e] - top) / sum; });
        } else {
          each(team, experts, [=](std::int64_t e) { s[e] = sigmoid(x[e]); });
          all = sum_of<A>(team, experts, [=](std::int64_t e) { return sigmoid(x[e]); });
        }
        once(team, [&] {
          lse(t) = top + std::log(sum);
          total(t) = all;
        });
      });
}

/// The gradient of a token's gates with respect to the score of its slot k is factor * (d_gates[k] - mean).
template <class A>
struct GateGradient {
  A factor, mean;
};
template <class A>
KOKKOS_INLINE_FUNCTION GateGradient<A> gate_gradient(Routing const& r, A const* scores, int const* choice, A const* d) {
  A const factor = gate_factor(r, scores, choice);
  A mean = 0;
  if (r.normalize)
    for (int k = 0; k < r.top_k; ++k) mean += d[k] * scores[choice[k]] * (factor / static_cast<A>(r.scale));
  return {factor, mean};
}

}  // namespace

void require_valid(Routing const& r) {
  P3D_REQUIRE(r.experts >= 1 && r.top_k >= 1, "a router has at least 1 expert and top_k of 1");
  P3D_REQUIRE(r.groups >= 1 && r.groups <= most_expert_groups && r.experts % r.groups == 0,
              "the groups of a router's experts are 1 to 64 and divide the experts");
  P3D_REQUIRE(r.group_top_k >= 1 && r.group_top_k <= r.groups, "group_top_k lies between 1 and the number of groups");
  P3D_REQUIRE(r.top_k <= r.experts / r.groups * r.group_top_k, "top_k exceeds the experts that a token may choose");
  P3D_REQUIRE(r.scale != 0, "a scale of 0 would make all gates 0");
}

template <class A>
void route_forward(ExecSpace const& exec, Routing const& routing, View2<A const> logits, Given<View1<A const>> bias,
                   RouterScores<A> const& saved, View2<int> choice, Given<View2<A>> gates) {
  require_valid(routing);
  auto const r = routing;
  auto const tokens = static_cast<std::int64_t>(logits.extent(0));
  auto const fits = [&](auto const& m, int cols) {
    return static_cast<std::int64_t>(m.extent(0)) == tokens && static_cast<int>(m.extent(1)) == cols;
  };
  P3D_REQUIRE(fits(logits, r.experts) && fits(saved.scores, r.experts) && fits(choice, r.top_k) &&
                  fits(gates, r.top_k) && (bias.extent(0) == 0 || static_cast<int>(bias.extent(0)) == r.experts),
              "shapes of a router do not fit");
  score(exec, r.score == Score::softmax, logits, saved);
  auto const scores = saved.scores;
  launch_kernel(
      "p3d::kernels::route_forward", FlatRange(exec, 0, tokens), KOKKOS_LAMBDA(std::int64_t t) {
        Keys<A> const key{&scores(t, 0), bias.extent(0) > 0 ? bias.data() : nullptr};
        int* const chosen = &choice(t, 0);
        choose(key, r, best_groups(key, r), chosen);
        A const factor = gate_factor(r, key.scores, chosen);
        for (int k = 0; k < r.top_k; ++k) gates(t, k) = factor * key.scores[chosen[k]];
      });
}

template <class A>
void route_backward(ExecSpace const& exec, Routing const& routing, View2<A const> logits, RouterScores<A> const& saved,
                    View2<int const> choice, Given<View2<A const>> d_gates, SampleRows rows,
                    Given<View2<A const>> auxiliary, double c_z, Given<View2<A>> d_logits) {
  auto const r = routing;
  auto const scores = saved.scores;
  auto const lse = saved.lse, total = saved.total;
  bool const softmax = r.score == Score::softmax, with_auxiliary = auxiliary.extent(0) > 0;
  A const z = static_cast<A>(2 * c_z);
  for_rows(
      "p3d::kernels::route_backward", exec, logits.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t t) {
        A const* const x = &logits(t, 0);
        A const* const s = &scores(t, 0);
        A const* const d = &d_gates(t, 0);
        int const* const chosen = &choice(t, 0);
        A* const dx = &d_logits(t, 0);
        auto const gradient = gate_gradient(r, s, chosen, d);
        // First the parts that all experts have: the gradient of p becomes that of the scores, then that of the logits.
        A const* const a = with_auxiliary ? &auxiliary(rows.sample(t), 0) : nullptr;
        A const whole = total(t), shift = lse(t), slope = z * lse(t);
        A mean = 0;
        if (with_auxiliary) mean = sum_of<A>(team, r.experts, [=](std::int64_t e) { return a[e] * s[e]; }) / whole;
        if (softmax)
          for (int k = 0; k < r.top_k; ++k) mean += gradient.factor * (d[k] - gradient.mean) * s[chosen[k]];
        each(team, r.experts, [=](std::int64_t e) {
          A const direct = a == nullptr ? A(0) : a[e];
          if (softmax)
            dx[e] = s[e] * (direct - mean + slope);
          else
            dx[e] = (direct - mean) / whole * s[e] * (1 - s[e]) + (slope == 0 ? A(0) : slope * exp_of(x[e] - shift));
        });
        barrier(team);
        once(team, [&] {
          for (int k = 0; k < r.top_k; ++k) {
            A const p = s[chosen[k]];
            dx[chosen[k]] += gradient.factor * (d[k] - gradient.mean) * p * (softmax ? A(1) : 1 - p);
          }
        });
      });
}

template <class A>
void routing_sums(ExecSpace const& exec, RouterScores<A> const& saved, SampleRows rows, View2<double> probabilities,
                  View1<double> z) {
  auto const scores = saved.scores;
  auto const lse = saved.lse, total = saved.total;
  auto const experts = static_cast<std::int64_t>(scores.extent(1)), tokens = static_cast<std::int64_t>(lse.extent(0));
  for_rows(
      "p3d::kernels::routing_sums", exec, z.extent(0) * (experts + 1),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t i) {
        // One team sums a sample's probabilities of one expert; one more team per sample sums the squares of lse.
        std::int64_t const sample = i / (experts + 1), e = i % (experts + 1);
        std::int64_t const begin = rows.begin(sample, tokens), n = rows.begin(sample + 1, tokens) - begin;
        if (e == experts) {
          double const sum = sum_of<double>(team, n, [=](std::int64_t j) {
            double const l = lse(begin + j);
            return l * l;
          });
          once(team, [&] { z(sample) = sum; });
        } else {
          double const sum = sum_of<double>(team, n, [=](std::int64_t j) {
            return static_cast<double>(scores(begin + j, e)) / static_cast<double>(total(begin + j));
          });
          once(team, [&] { probabilities(sample, e) = sum; });
        }
      });
}

#define P3D_INSTANTIATE(A)                                                                                         \
  template void route_forward<A>(ExecSpace const&, Routing const&, View2<A const>, View1<A const>,                 \
                                 RouterScores<A> const&, View2<int>, View2<A>);                                    \
  template void route_backward<A>(ExecSpace const&, Routing const&, View2<A const>, RouterScores<A> const&,        \
                                  View2<int const>, View2<A const>, SampleRows, View2<A const>, double, View2<A>); \
  template void routing_sums<A>(ExecSpace const&, RouterScores<A> const&, SampleRows, View2<double>, View1<double>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
