// SPDX-License-Identifier: Apache-2.0
// The router of a mixture-of-experts layer: against sorting written out, and finite differences.

#include "support.hpp"

#include <p3d/base/error.hpp>
#include <p3d/kernels/routing.hpp>

#include <support/errors.hpp>

#include <limits>
#include <numeric>

using namespace p3d::test;
namespace kernels = p3d::kernels;
using kernels::Routing;
using kernels::SampleRows;
using kernels::Score;

namespace routing_test {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Result {
  Vec scores, lse, total, choice, gates;
};

template <class A>
struct Router {
  std::int64_t tokens;
  Owned2<A> logits, scores, gates;
  Owned1<A> bias, lse, total;
  Owned2<int> choice;
  kernels::RouterScores<A> saved() const { return {scores, lse, total}; }
};
template <class A>
Router<A> forward(Routing const& r, Vec const& logits, Vec const& bias) {
  auto const tokens = static_cast<std::int64_t>(logits.size()) / r.experts;
  Router<A> router{tokens,
                   matrix_of<A>(tokens, r.experts, logits),
                   Owned2<A>("p3d::test::scores", tokens, r.experts),
                   Owned2<A>("p3d::test::gates", tokens, r.top_k),
                   vector_of<A>(bias),
                   Owned1<A>("p3d::test::lse", tokens),
                   Owned1<A>("p3d::test::total", tokens),
                   Owned2<int>("p3d::test::choice", tokens, r.top_k)};
  kernels::route_forward<A>(ExecSpace(), r, router.logits, router.bias, router.saved(), router.choice, router.gates);
  return router;
}
template <class A>
Result run(Routing const& r, Vec const& logits, Vec const& bias) {
  auto const router = forward<A>(r, logits, bias);
  return {host(router.scores), host(router.lse), host(router.total), host(router.choice), host(router.gates)};
}

/// The experts of one token by sorting, best first.
std::vector<int> sorted_choice(Routing const& r, Vec const& key) {
  int const size = r.experts / r.groups;
  std::vector<int> groups(r.groups), experts;
  std::iota(groups.begin(), groups.end(), 0);
  auto const value = [&](int g) {
    Vec members(key.begin() + g * size, key.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    return r.score == Score::sigmoid && size > 1 ? members[0] + members[1] : members[0];
  };
  std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return value(a) > value(b); });
  groups.resize(r.group_top_k);
  std::sort(groups.begin(), groups.end());
  for (int g : groups)
    for (int i = 0; i < size; ++i) experts.push_back(g * size + i);
  std::stable_sort(experts.begin(), experts.end(), [&](int a, int b) { return key[a] > key[b]; });
  experts.resize(r.top_k);
  return experts;
}

/// `fixed`: the experts of each token, instead of the best ones.
Result plain(Routing const& r, Vec const& logits, Vec const& bias, Vec const& fixed = {}) {
  Result p;
  for (std::size_t t = 0; t < logits.size() / r.experts; ++t) {
    long double sum = 0, total = 0;
    Vec score(r.experts), key(r.experts);
    double const* const x = &logits[t * r.experts];
    for (int e = 0; e < r.experts; ++e) sum += std::exp(static_cast<long double>(x[e]));
    for (int e = 0; e < r.experts; ++e) {
      auto const l = static_cast<long double>(x[e]);
      score[e] = static_cast<double>(r.score == Score::softmax ? std::exp(l) / sum : 1 / (1 + std::exp(-l)));
      key[e] = score[e] + (bias.empty() ? 0.0 : bias[e]);
      total += score[e];
    }
    auto choice = sorted_choice(r, key);
    if (!fixed.empty()) choice.assign(fixed.begin() + t * r.top_k, fixed.begin() + (t + 1) * r.top_k);
    double chosen = 0;
    for (int e : choice) chosen += score[e];
    for (int e : choice) {
      p.choice.push_back(e);
      p.gates.push_back(r.scale * score[e] / (r.normalize ? chosen : 1.0));
    }
    p.scores.insert(p.scores.end(), score.begin(), score.end());
    p.lse.push_back(static_cast<double>(std::log(sum)));
    p.total.push_back(static_cast<double>(r.score == Score::softmax ? 1 : total));
  }
  return p;
}

struct Case {
  char const* name;
  Routing routing;
  bool biased;
};
constexpr std::int64_t tokens = 14, per_sample = 5, first_row = 3;  // samples of 2, 5, 5 and 2 tokens here

class RouterKinds : public ::testing::TestWithParam<Case> {
protected:
  Routing r = GetParam().routing;
  Vec logits = random_values("logits", tokens* r.experts, 1.5);
  Vec bias = GetParam().biased ? random_values("bias", r.experts, 0.3) : Vec{};
  Vec weights = random_values("weights", tokens* r.top_k);
  Vec auxiliary = random_values("auxiliary", 4 * r.experts);
  SampleRows rows{per_sample, first_row};

  /// Of one token.
  double loss(std::int64_t t, Result const& p, bool with_auxiliary, double c_z) const {
    double sum = c_z * p.lse[0] * p.lse[0];
    for (int k = 0; k < r.top_k; ++k) sum += weights[t * r.top_k + k] * p.gates[k];
    for (int e = 0; with_auxiliary && e < r.experts; ++e)
      sum += auxiliary[(first_row + t) / per_sample * r.experts + e] * p.scores[e] / p.total[0];
    return sum;
  }
  template <class A>
  Vec backward(bool with_auxiliary, double c_z) const {
    auto const router = forward<A>(r, logits, bias);
    Owned2<A> const d("p3d::test::d_logits", tokens, r.experts);
    auto const a = with_auxiliary ? matrix_of<A>(4, r.experts, auxiliary) : Owned2<A>();
    auto const dg = matrix_of<A>(tokens, r.top_k, weights);
    kernels::route_backward<A>(ExecSpace(), r, router.logits, router.saved(), router.choice, dg, rows, a, c_z, d);
    return host(d);
  }
};

TEST_P(RouterKinds, ChoiceAndGatesMatchSorting) {
  auto const expected = plain(r, logits, bias);
  auto const check = [&](Result const& found, double tolerance) {
    EXPECT_EQ(found.choice, expected.choice);
    expect_close(found.scores, expected.scores, tolerance, "scores");
    expect_close(found.gates, expected.gates, tolerance, "gates");
    expect_close(found.lse, expected.lse, tolerance, "lse");
    expect_close(found.total, expected.total, tolerance, "total");
  };
  check(run<double>(r, logits, bias), 1e-14);
  check(run<float>(r, logits, bias), 1e-6);
}

TEST_P(RouterKinds, BackwardMatchesFiniteDifferences) {
  auto const choice = run<double>(r, logits, bias).choice;
  bool const only = r.experts == 1 && r.score == Score::softmax, constant = only || (r.normalize && r.top_k == 1);
  for (bool const with_auxiliary : {false, true})
    for (double const c_z : {0.0, 0.07}) {
      auto const gradient = backward<double>(with_auxiliary, c_z);
      expect_close(backward<float>(with_auxiliary, c_z), gradient, 4e-6, "in float");
      if (c_z == 0 && (only || (constant && !with_auxiliary))) {
        EXPECT_LT(largest(gradient), 1e-14) << "the only gate is constant";
        continue;
      }
      for (std::int64_t t = 0; t < tokens; ++t) {
        auto const part = [t](Vec const& v, int n) { return Vec(v.begin() + t * n, v.begin() + (t + 1) * n); };
        auto const fixed = part(choice, r.top_k);
        auto const at = [&](Vec const& x) { return loss(t, plain(r, x, bias, fixed), with_auxiliary, c_z); };
        expect_gradient(at, part(logits, r.experts), part(gradient, r.experts), "token " + std::to_string(t), 1e-7);
      }
    }
}

TEST_P(RouterKinds, SumsOfASampleMatchLoops) {
  auto const router = forward<double>(r, logits, bias);
  Owned2<double> const p("p3d::test::probabilities", 4, r.experts);
  Owned1<double> const z("p3d::test::z", 4);
  kernels::routing_sums<double>(ExecSpace(), router.saved(), rows, p, z);
  Vec sums(4 * r.experts), squares(4);
  auto const expected = plain(r, logits, bias);
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto const sample = (first_row + t) / per_sample;
    squares[sample] += expected.lse[t] * expected.lse[t];
    for (int e = 0; e < r.experts; ++e)
      sums[sample * r.experts + e] += expected.scores[t * r.experts + e] / expected.total[t];
  }
  expect_close(host(p), sums, 1e-14, "probabilities");
  expect_close(host(z), squares, 1e-14, "z");
}

INSTANTIATE_TEST_SUITE_P(Kinds, RouterKinds,
                         ::testing::Values(Case{"softmax", {8, 2}, false},
                                           Case{"softmax_normalized", {8, 2, Score::softmax, 1, 1, true}, false},
                                           Case{"softmax_biased", {9, 3, Score::softmax, 3, 3, false, 2.0}, true},
                                           Case{"softmax_groups", {12, 3, Score::softmax, 4, 2, false, 16.0}, false},
                                           Case{"sigmoid", {8, 3, Score::sigmoid, 1, 1, false}, true},
                                           Case{"sigmoid_groups", {16, 4, Score::sigmoid, 4, 2, true, 2.5}, true},
                                           Case{"sigmoid_groups_of_one", {6, 2, Score::sigmoid, 6, 3, true}, false},
                                           Case{"all_experts", {5, 5, Score::softmax, 1, 1, true}, false},
                                           Case{"top_1", {7, 1, Score::sigmoid, 1, 1, true}, false},
                                           Case{"one_expert", {1, 1, Score::softmax}, false},
                                           Case{"many", {130, 8, Score::sigmoid, 10, 5, true}, true}),
                         [](auto const& info) { return std::string(info.param.name); });

TEST(Routing, NormalizedIsSoftmaxOverTheChosen) {
  Routing const r{8, 3, Score::softmax, 1, 1, true};
  auto const logits = random_values("logits", 10 * 8, 2.0);
  auto const found = run<double>(r, logits, {});
  for (int t = 0; t < 10; ++t) {
    auto const logit = [&](int k) { return logits[t * 8 + static_cast<int>(found.choice[t * 3 + k])]; };
    for (int k = 0; k < 3; ++k) {
      double sum = 0;
      for (int j = 0; j < 3; ++j) sum += std::exp(logit(j) - logit(k));
      EXPECT_NEAR(found.gates[t * 3 + k], 1 / sum, 1e-15);
    }
  }
}

TEST(Routing, BiasIsForTheChoiceOnly) {
  Routing const r{4, 2, Score::sigmoid};
  auto const found = run<double>(r, {0.5, 0.25, 0, -1}, {0, 0, 0, 5});
  EXPECT_EQ(found.choice, (Vec{3, 0}));
  expect_close(found.gates, {1 / (1 + std::exp(1.0)), 1 / (1 + std::exp(-0.5))}, 1e-15, "gates");
}

TEST(Routing, TheLowerOfEqualExpertsAndGroupsIsChosen) {
  EXPECT_EQ(run<float>({6, 4}, Vec(6, 0.5), {}).choice, (Vec{0, 1, 2, 3}));
  EXPECT_EQ(run<float>({6, 3}, {1, 2, 1, 2, 1, 2}, {}).choice, (Vec{1, 3, 5}));
  EXPECT_EQ(run<float>({6, 3}, {2, 1, 2, 1, 2, 1}, {}).choice, (Vec{0, 2, 4}));
  EXPECT_EQ(run<float>({6, 3, Score::sigmoid, 3, 2}, Vec(6, -1.0), {}).choice, (Vec{0, 1, 2}));
  EXPECT_EQ(run<float>({6, 3, Score::softmax, 3, 2}, {0, 1, 2, 0, 2, 0}, {}).choice, (Vec{2, 4, 3}));
}

// Such logits end a run, but where the gates are seen to be NaN, not with an error of memory.
TEST(Routing, LogitsThatAreNoNumbersStayInRange) {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (auto const score : {Score::softmax, Score::sigmoid})
    for (int const groups : {1, 3})
      for (Vec const& logits : {Vec(6, nan), Vec{1, nan, 2, nan, 3, 4}, Vec(6, infinity), Vec(6, -infinity),
                                Vec{-infinity, infinity, nan, 0, -infinity, 1}}) {
        Routing const r{6, 3, score, groups, groups == 1 ? 1 : 2, true};
        for (Vec const& bias : {Vec{}, Vec{0, nan, infinity, -infinity, 0, 1}}) {
          auto const choice = run<double>(r, logits, bias).choice;
          for (int k = 0; k < 3; ++k) {
            ASSERT_TRUE(choice[k] >= 0 && choice[k] < 6) << choice[k];
            for (int j = 0; j < k; ++j) ASSERT_NE(choice[k], choice[j]) << "an expert twice";
          }
        }
      }
  auto const found = run<double>({6, 3, Score::sigmoid}, {1, nan, 2, nan, 3, 4}, {});
  EXPECT_EQ(found.choice, (Vec{5, 4, 2}));
  EXPECT_TRUE(std::isnan(run<double>({2, 2, Score::softmax}, {nan, 0}, {}).gates[0]));
}

TEST(Routing, LogitsFarBeyondTheRangeOfExp) {
  auto const found = run<float>({4, 2, Score::softmax, 1, 1, true}, {-3000, 2000, 2001, -2000}, {});
  EXPECT_EQ(found.choice, (Vec{2, 1}));
  expect_close(found.gates, {1 / (1 + std::exp(-1.0)), 1 / (1 + std::exp(1.0))}, 1e-6, "gates");
  EXPECT_NEAR(found.lse[0], 2001 + std::log1p(std::exp(-1.0)), 1e-3);
}

TEST(Routing, NoTokens) { EXPECT_TRUE(run<double>({4, 2}, {}, {}).choice.empty()); }

TEST(Routing, ImpossibleOnesAreRefused) {
  expect_error([] { kernels::require_valid({4, 5}); }, "top_k exceeds");
  expect_error([] { kernels::require_valid({8, 3, Score::softmax, 4, 1}); }, "top_k exceeds");
  expect_error([] { kernels::require_valid({8, 2, Score::softmax, 3, 1}); }, "divide the experts");
  expect_error([] { kernels::require_valid({130, 2, Score::softmax, 65, 65}); }, "1 to 64");
  expect_error([] { kernels::require_valid({8, 2, Score::softmax, 4, 5}); }, "group_top_k");
  expect_error([] { kernels::require_valid({0, 0}); }, "at least 1");
  expect_error([] { run<double>({4, 2}, Vec(8), Vec(3)); }, "shapes of a router");
}

}  // namespace routing_test
