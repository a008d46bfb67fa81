// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD: against the published step written out in long double, over several steps.

#include "support.hpp"

#include <p3d/kernels/update.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace update_test {

constexpr std::int64_t n = 2500;  // more than two chunks

template <class T>
void check_adamw(double tolerance) {
  double const lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, grad_scale = 0.25;
  auto const p0 = random_values("p", n);
  char const* const names[] = {"g1", "g2", "g3", "g4"};
  std::vector<long double> p(p0.begin(), p0.end()), m(n, 0), v(n, 0);
  auto const dp = vector_of<T>(p0), dm = vector_of<T>(Vec(n, 0.0)), dv = vector_of<T>(Vec(n, 0.0));
  for (int t = 1; t <= 4; ++t) {
    auto const g = random_values(names[t - 1], n);
    for (std::int64_t i = 0; i < n; ++i) {
      long double const d = grad_scale * static_cast<long double>(g[i]);
      m[i] = beta1 * m[i] + (1 - beta1) * d;
      v[i] = beta2 * v[i] + (1 - beta2) * d * d;
      long double const mh = m[i] / (1 - std::pow(beta1, t)), vh = v[i] / (1 - std::pow(beta2, t));
      p[i] -= lr * (mh / (std::sqrt(vh) + eps) + decay * p[i]);
    }
    bool const clear = t % 2 == 0;
    kernels::AdamW const step{lr,         beta1, beta2, eps, decay, 1 - std::pow(beta1, t), 1 - std::pow(beta2, t),
                              grad_scale, clear};
    auto const dg = vector_of<T>(g);
    kernels::adamw<T>(ExecSpace(), step, dp, dg, dm, dv);
    EXPECT_EQ(host(dg), clear ? Vec(n, 0.0) : host(vector_of<T>(g)));
  }
  expect_close(host(dp), Vec(p.begin(), p.end()), tolerance, "p");
  expect_close(host(dm), Vec(m.begin(), m.end()), tolerance, "m");
  expect_close(host(dv), Vec(v.begin(), v.end()), tolerance, "v");
}

TEST(AdamW, MatchesTheAlgorithm) {
  check_adamw<double>(1e-15);
  check_adamw<float>(5e-7);
}

TEST(Sgd, MatchesTheFormula) {
  auto const p = random_values("p", n), g = random_values("g", n);
  Vec expected(n);
  for (std::int64_t i = 0; i < n; ++i) expected[i] = p[i] - 0.1 * (0.5 * g[i] + 0.01 * p[i]);
  auto const d = vector_of<double>(p);
  auto const f = vector_of<float>(p);
  auto const gd = vector_of<double>(g);
  auto const gf = vector_of<float>(g);
  kernels::sgd<double>(ExecSpace(), {0.1, 0.01, 0.5, true}, d, gd);
  kernels::sgd<float>(ExecSpace(), {0.1, 0.01, 0.5, false}, f, gf);
  EXPECT_EQ(host(gd), Vec(n, 0.0));
  EXPECT_EQ(host(gf), host(vector_of<float>(g)));
  expect_close(host(d), expected, 1e-15);
  expect_close(host(f), expected, 2e-7);
}

TEST(Update, KeepsWhatItReplaces) {
  std::vector<kernels::DecaySegment> const segments{{0, 3, 0.1}, {3, n - 7, 0.0}};  // the last 4 stay as they are
  auto const p0 = random_values("p", n), m0 = random_values("m", n), g0 = random_values("g", n);
  Vec const v0(n, 0.5), none(n, 0.0);
  kernels::AdamW const adam{1e-2, 0.9, 0.95, 1e-8, 7.0, 0.1, 0.05, 0.25, false};
  auto const head = [](Vec all) {
    std::fill(all.end() - 4, all.end(), 0.0);
    return all;
  };
  auto const check = [&]<class T>(T) {
    auto const p = vector_of<T>(p0), q = vector_of<T>(p0), g = vector_of<T>(g0), m = vector_of<T>(m0),
               v = vector_of<T>(v0), old_p = vector_of<T>(none), old_m = vector_of<T>(none), old_v = vector_of<T>(none);
    auto const before_p = host(p), before_m = host(m), before_v = host(v);
    auto const plain_p = vector_of<T>(p0), plain_m = vector_of<T>(m0), plain_v = vector_of<T>(v0);
    kernels::adamw<T>(ExecSpace(), adam, segments, plain_p, g, plain_m, plain_v);
    kernels::adamw<T>(ExecSpace(), adam, segments, p, g, m, v, {}, {old_p, old_m, old_v});
    EXPECT_EQ(host(p), host(plain_p)) << "the same update";
    EXPECT_EQ(host(m), host(plain_m));
    EXPECT_EQ(host(v), host(plain_v));
    EXPECT_EQ(host(old_p), head(before_p));
    EXPECT_EQ(host(old_m), head(before_m));
    EXPECT_EQ(host(old_v), head(before_v));
    kernels::sgd<T>(ExecSpace(), {0.1, 0.01, 0.5, false}, segments, q, g, {}, {old_m, {}, {}});
    EXPECT_NE(host(q), before_p);
    EXPECT_EQ(host(old_m), head(before_p));
  };
  check(1.0);
  check(1.0F);
}

TEST(Update, SegmentsHaveTheBitsOfOneCallEach) {
  // More segments than one launch takes, an empty one, one of several chunks, gaps that stay as they are.
  std::vector<kernels::DecaySegment> segments;
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < 70; ++i) {
    std::int64_t const count = i == 5 ? 0 : i == 66 ? 2500 : i + 1;
    segments.push_back({end, count, i % 2 == 0 ? 0.1 : 0.0});
    end += count + 3;
  }
  auto const p0 = random_values("p", end), g0 = random_values("g", end), v0 = Vec(end, 0.5);
  kernels::AdamW adam{1e-2, 0.9, 0.95, 1e-8, 7.0, 0.1, 0.05, 0.25, true};
  kernels::Sgd sgd{1e-2, 7.0, 0.25, true};
  auto const p = vector_of<float>(p0), g = vector_of<float>(g0), m = vector_of<float>(p0), v = vector_of<float>(v0);
  auto const q = vector_of<float>(p0), h = vector_of<float>(g0);
  auto const p1 = vector_of<float>(p0), g1 = vector_of<float>(g0), m1 = vector_of<float>(p0), v1 = vector_of<float>(v0),
             q1 = vector_of<float>(p0), h1 = vector_of<float>(g0);
  kernels::adamw<float>(ExecSpace(), adam, segments, p, g, m, v);
  kernels::sgd<float>(ExecSpace(), sgd, segments, q, h);
  for (auto const& s : segments) {
    auto const part = [&](View1<float> x) { return View1<float>(x.data() + s.begin, s.count); };
    adam.decay = sgd.decay = s.decay;
    kernels::adamw<float>(ExecSpace(), adam, part(p1), part(g1), part(m1), part(v1));
    kernels::sgd<float>(ExecSpace(), sgd, part(q1), part(h1));
  }
  expect_same(host(p), host(p1));
  expect_same(host(g), host(g1));
  expect_same(host(m), host(m1));
  expect_same(host(v), host(v1));
  expect_same(host(q), host(q1));
  expect_same(host(h), host(h1));
  EXPECT_NE(host(p), host(vector_of<float>(p0)));
}

}  // namespace update_test
