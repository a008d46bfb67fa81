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

}  // namespace update_test
