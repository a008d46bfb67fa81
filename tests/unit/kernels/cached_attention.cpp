// SPDX-License-Identifier: Apache-2.0
// Attention over kept keys and values, token after token, against causal attention over the whole text.

#include "attention_case.hpp"

#include <p3d/kernels/attention_sinks.hpp>
#include <p3d/kernels/cached_attention.hpp>

namespace attention_test {

class CachedAttention : public ::testing::TestWithParam<Case> {};

/// Row after row of every sample, the samples in the caches in reverse order and one place apart.
template <class S>
Vec token_by_token(Case const& c, Vec const& qkv, Vec const& sinks = {}) {
  std::int64_t const texts = 2 * c.samples, capacity = c.seq + 3;
  auto const keys = matrix_of<S>(texts * c.kv_heads, capacity * c.dim, Vec(texts * c.kv_heads * capacity * c.dim, 7.0));
  auto const values =
      matrix_of<S>(texts * c.kv_heads, capacity * c.values(), Vec(texts * c.kv_heads * capacity * c.values(), -7.0));
  auto const of_heads = vector_of<S>(sinks);
  Vec out(c.rows() * c.out_width());
  for (std::int64_t p = 0; p < c.seq; ++p) {
    Vec rows;
    std::vector<int> text, position;
    for (std::int64_t s = 0; s < c.samples; ++s) {
      auto const from = qkv.begin() + (s * c.seq + p) * c.width();
      rows.insert(rows.end(), from, from + c.width());
      text.push_back(static_cast<int>(2 * (c.samples - 1 - s)));
      position.push_back(static_cast<int>(p));
    }
    auto const d = matrix_of<S>(c.samples, c.width(), rows);
    auto const y = matrix_of<S>(c.samples, c.out_width(), Vec(c.samples * c.out_width()));
    auto const texts_view = ints_of(text), positions = ints_of(position);
    auto const shape = c.shape();
    kernels::TokenRows new_rows{0, c.samples, 1};
    new_rows.positions = positions;
    kernels::CachedTexts const at{texts_view, false, capacity};
    kernels::store_keys_values<S>(ExecSpace(), new_rows, shape, at, d, keys, values);
    kernels::cached_attention_forward<S>(ExecSpace(), new_rows, shape, at, d, keys, values, View1<S const>(of_heads),
                                         y);
    auto const found = host(y);
    for (std::int64_t s = 0; s < c.samples; ++s)
      std::copy_n(found.begin() + s * c.out_width(), c.out_width(), out.begin() + (s * c.seq + p) * c.out_width());
  }
  return out;
}

TEST_P(CachedAttention, EachTokenIsThatOfTheWholeText) {
  auto const c = GetParam();
  auto const qkv = random_values("qkv", c.rows() * c.width());
  expect_close(token_by_token<double>(c, qkv), forward<double>(c, qkv).out, 1e-13);
  expect_close(token_by_token<float>(c, qkv), forward<double>(c, qkv).out, 4e-6);
}

TEST_P(CachedAttention, HasSinks) {
  auto const c = GetParam();
  auto const qkv = random_values("qkv", c.rows() * c.width()), sinks = random_values("sinks", c.heads, 3.0);
  auto const whole = forward<double>(c, qkv);
  auto const out = matrix_of<double>(c.rows(), c.out_width(), whole.out);
  auto const lse = vector_of<double>(whole.lse), s = vector_of<double>(sinks);
  kernels::attention_sinks_forward<double>(ExecSpace(), c.shape(), View1<double const>(s),
                                           kernels::heads_of(View2<double>(out)), View1<double>(lse));
  expect_close(token_by_token<double>(c, qkv, sinks), host(out), 1e-13);
  expect_close(token_by_token<float>(c, qkv, sinks), host(out), 4e-6);
}

template <class S>
void check_16_bits(Case const& c) {
  auto const qkv = rounded<S>(random_values("qkv", c.rows() * c.width()));
  expect_rounded<S>(token_by_token<S>(c, qkv), forward<double>(c, qkv).out);
}
TEST_P(CachedAttention, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>(GetParam());
  check_16_bits<float16>(GetParam());
}

// Latent attention keeps one vector of a token: keys read all of it, values its first part.
TEST(CachedAttention, ValuesMayBeAPartOfTheKeys) {
  std::int64_t const texts = 2, capacity = 9, heads = 3, dim = 5, value = 3, places = 7;
  kernels::AttentionShape shape;
  shape.heads = heads, shape.kv_heads = 1, shape.head_dim = dim, shape.value_dim = value, shape.scale = 0.4;
  auto const queries = random_values("queries", texts * places * heads * dim),
             kept = random_values("kept", texts * places * dim);
  auto const keys = matrix_of<double>(texts, capacity * dim, Vec(texts * capacity * dim, 7.0)),
             alone = matrix_of<double>(texts, capacity * dim, Vec(texts * capacity * dim, -7.0)),
             values = matrix_of<double>(texts, capacity * value, Vec(texts * capacity * value, 3.0));
  for (std::int64_t p = 0; p < places; ++p) {
    Vec row, one;
    for (std::int64_t t = 0; t < texts; ++t) {
      auto const q = queries.begin() + (t * places + p) * heads * dim, k = kept.begin() + (t * places + p) * dim;
      row.insert(row.end(), q, q + heads * dim), row.insert(row.end(), k, k + dim);
      row.insert(row.end(), k, k + value), one.insert(one.end(), k, k + dim);
    }
    auto const text = ints_of({1, 0}), positions = ints_of({static_cast<int>(p), static_cast<int>(p)});
    kernels::TokenRows rows{0, texts, 1};
    rows.positions = positions;
    kernels::CachedTexts at{text, false, capacity};
    auto const qkv = matrix_of<double>(texts, heads * dim + dim + value, row);
    auto const y = matrix_of<double>(texts, heads * value, Vec(texts * heads * value)),
               z = matrix_of<double>(texts, heads * value, Vec(texts * heads * value, 1.0));
    kernels::store_keys_values<double>(ExecSpace(), rows, shape, at, qkv, keys, values);
    kernels::cached_attention_forward<double>(ExecSpace(), rows, shape, at, qkv, keys, values, View1<double const>(),
                                              y);
    kernels::store_in_cache<double>(ExecSpace(), rows, at, 1, matrix_of<double>(texts, dim, one), alone);
    at.value_stride = dim;
    kernels::cached_attention_forward<double>(ExecSpace(), rows, shape, at, qkv, alone, alone, View1<double const>(),
                                              z);
    EXPECT_EQ(host(z), host(y)) << p;
  }
}

Case windowed(Case c, std::int64_t window) {
  c.window = window;
  return c;
}
INSTANTIATE_TEST_SUITE_P(Shapes, CachedAttention,
                         ::testing::Values(Case{2, 5, 2, 2, 6, 0.0}, Case{1, 66, 4, 2, 20, 0.0},
                                           Case{3, 17, 3, 1, 37, 0.0}, windowed({2, 19, 4, 2, 6, 0.0}, 1),
                                           windowed({2, 20, 4, 2, 6, 0.0}, 5), windowed({1, 149, 2, 1, 8, 0.0}, 70),
                                           windowed({1, 12, 2, 1, 8, 0.0}, 99), with_values({2, 5, 4, 2, 6, 0.0}, 4),
                                           with_values({1, 66, 2, 2, 20, 0.0}, 37),
                                           windowed(with_values({2, 20, 4, 2, 4, 0.0}, 6), 5),
                                           windowed(with_cap({2, 20, 4, 2, 6, 0.0}, 0.6), 7),
                                           with_cap({1, 66, 4, 2, 20, 0.0}, 1.1)),
                         [](auto const& info) { return info.param.name(); });

}  // namespace attention_test
