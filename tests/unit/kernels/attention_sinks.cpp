// SPDX-License-Identifier: Apache-2.0
// Attention sinks, against a softmax with one more logit written out in double, and its gradients against finite
// differences.

#include "attention_case.hpp"

#include <p3d/kernels/attention_sinks.hpp>

namespace attention_test {

namespace {

std::vector<Case> cases() {
  return {{2, 5, 2, 2, 6, 0.0}, {1, 33, 4, 2, 10, 0.0}, {2, 9, 3, 1, 5, 0.3}, with_values({2, 7, 4, 2, 6, 0.0}, 3)};
}

Vec sinks_of(Case const& c) { return random_values("sinks", c.heads, 1.5); }

template <class T>
Output forward_with(Case const& c, Vec const& qkv, Vec const& sinks) {
  auto const saved = forward<T>(c, qkv);
  auto const out = matrix_of<T>(c.rows(), c.out_width(), saved.out);
  auto const lse = vector_of<Acc<T>>(saved.lse);
  auto const s = vector_of<T>(sinks);
  kernels::attention_sinks_forward<T, T>(ExecSpace(), c.shape(), View1<T const>(s), kernels::heads_of(View2<T>(out)),
                                         View1<Acc<T>>(lse));
  return {host(out), host(lse)};
}

Output plain_with(Case const& c, Vec const& qkv, Vec const& sinks) {
  auto y = plain(c, qkv);
  for (std::int64_t sample = 0; sample < c.samples; ++sample)
    for (std::int64_t head = 0; head < c.heads; ++head)
      for (std::int64_t i = 0; i < c.seq; ++i) {
        auto& lse = y.lse[(sample * c.heads + head) * c.seq + i];
        double const sum = std::exp(lse), all = sum + std::exp(sinks[head]);
        lse = std::log(all);
        for (std::int64_t d = 0; d < c.values(); ++d) y.out[Head{c, sample, head}.o(i, d)] *= sum / all;
      }
  return y;
}

/// The gradient of the sinks, behind one that is there already.
template <class T>
Vec backward_of_sinks(Case const& c, Vec const& sinks, Vec const& dout, Output const& saved, Vec const& before) {
  auto const out = matrix_of<T>(c.rows(), c.out_width(), saved.out), d = matrix_of<T>(c.rows(), c.out_width(), dout);
  auto const lse = vector_of<Acc<T>>(saved.lse), grad = vector_of<Acc<T>>(before);
  auto const s = vector_of<T>(sinks);
  Owned1<Acc<T>> const delta("p3d::test::delta", c.rows() * c.heads);
  kernels::attention_delta<T>(ExecSpace(), c.shape(), kernels::heads_of(View2<T const>(out)),
                              kernels::heads_of(View2<T const>(d)), View1<Acc<T>>(delta));
  kernels::attention_sinks_backward<T>(ExecSpace(), c.shape(), View1<T const>(s), View1<Acc<T> const>(lse),
                                       View1<Acc<T> const>(delta), View1<Acc<T>>(grad));
  return host(grad);
}

TEST(AttentionSinks, AreOneMoreLogitOfTheSoftmax) {
  for (auto const& c : cases()) {
    SCOPED_TRACE(c.name());
    auto const qkv = random_values("qkv", c.rows() * c.width());
    auto const expected = plain_with(c, qkv, sinks_of(c));
    auto const in_double = forward_with<double>(c, qkv, sinks_of(c)),
               in_float = forward_with<float>(c, qkv, sinks_of(c));
    expect_close(in_double.out, expected.out, 1e-13, "out");
    expect_close(in_double.lse, expected.lse, 1e-13, "lse");
    expect_close(in_float.out, expected.out, 4e-6, "out");
    expect_close(in_float.lse, expected.lse, 4e-6, "lse");
  }
}

TEST(AttentionSinks, GradientsMatchFiniteDifferences) {
  for (auto const& c : cases()) {
    SCOPED_TRACE(c.name());
    auto const qkv = random_values("qkv", c.rows() * c.width()), dout = random_values("dout", c.rows() * c.out_width());
    auto const sinks = sinks_of(c), before = random_values("before", c.heads);
    auto const saved = forward_with<double>(c, qkv, sinks);
    auto grad = backward_of_sinks<double>(c, sinks, dout, saved, before);
    auto const in_float = backward_of_sinks<float>(c, sinks, dout, saved, before);
    expect_close(in_float, grad, 4e-6, "gradient in float");
    for (std::size_t h = 0; h < grad.size(); ++h) grad[h] -= before[h];
    expect_gradient([&](Vec const& s) { return dot(plain_with(c, qkv, s).out, dout); }, sinks, grad, "d_sinks");
    // Attention's own backward needs the corrected output and lse, and nothing else.
    auto const dqkv = backward<double>(c, qkv, dout, saved);
    expect_gradient([&](Vec const& x) { return dot(plain_with(c, x, sinks).out, dout); }, qkv, dqkv, "dqkv");
  }
}

TEST(AttentionSinks, LeaveRowsWithoutKeysAtZero) {
  Case const c{1, 3, 2, 2, 4, 0.0};
  auto const out = matrix_of<float>(c.rows(), c.out_width(), Vec(c.rows() * c.out_width(), 0.0));
  auto const lse = vector_of<float>(Vec(c.rows() * c.heads, -std::numeric_limits<double>::infinity()));
  auto const sinks = vector_of<float>({0.5, -2.0});
  kernels::attention_sinks_forward<float, float>(ExecSpace(), c.shape(), View1<float const>(sinks),
                                                 kernels::heads_of(View2<float>(out)), View1<float>(lse));
  for (double x : host(out)) EXPECT_EQ(x, 0.0);
  auto const found = host(lse);
  for (std::int64_t i = 0; i < c.seq; ++i) {
    EXPECT_FLOAT_EQ(static_cast<float>(found[i]), 0.5F);
    EXPECT_FLOAT_EQ(static_cast<float>(found[c.seq + i]), -2.0F);
  }
}

template <class S>
void check_sinks_16_bits() {
  auto const c = cases()[1];
  auto const qkv = rounded<S>(random_values("qkv", c.rows() * c.width())), sinks = rounded<S>(sinks_of(c));
  // Kept in the type of sums until it is corrected, the output is rounded once.
  auto const saved = forward<double>(c, qkv);
  auto const out = matrix_of<float>(c.rows(), c.out_width(), saved.out);
  auto const lse = vector_of<float>(saved.lse);
  auto const s = vector_of<S>(sinks);
  kernels::attention_sinks_forward<S, float>(ExecSpace(), c.shape(), View1<S const>(s),
                                             kernels::heads_of(View2<float>(out)), View1<float>(lse));
  expect_close(host(out), forward_with<double>(c, qkv, sinks).out, 4e-6);
}
TEST(AttentionSinks, Of16BitsCorrectSumsInFloat) {
  check_sinks_16_bits<bfloat16>();
  check_sinks_16_bits<float16>();
}

}  // namespace

}  // namespace attention_test
