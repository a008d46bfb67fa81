// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention with all its matrices written out in double: the other half of the attention tests.

#include "support.hpp"

#include <p3d/base/error.hpp>
#include <p3d/kernels/attention.hpp>

#include <algorithm>
#include <utility>

namespace attention_test {

using namespace p3d::test;
namespace kernels = p3d::kernels;

struct Case {
  std::int64_t samples, seq, heads, kv_heads, dim;
  double rate;
  std::int64_t first_head = 0, first_sample = 3;

  std::int64_t rows() const { return samples * seq; }
  std::int64_t window = 0;
  std::vector<int> documents{};  ///< [samples, seq]: the first token of each one's document
  std::int64_t value_dim = 0;    ///< 0: dim
  double softcap = 0.0;          ///< c: scaled scores s become c tanh(s / c); 0: none
  std::int64_t first_query = 0;  ///< the loops leave out the queries before it
  std::int64_t values() const { return value_dim > 0 ? value_dim : dim; }
  std::int64_t width() const { return (heads + kv_heads) * dim + kv_heads * values(); }
  std::int64_t out_width() const { return heads * values(); }
  kernels::AttentionShape shape() const {
    kernels::AttentionShape s;
    s.first_sample = first_sample;
    s.samples = samples;
    s.seq_len = seq;
    s.queries = s.keys = p3d::base::TokenSet::range(0, seq);
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dim = dim;
    s.value_dim = value_dim;
    s.first_head = first_head;
    s.scale = 1.0 / std::sqrt(static_cast<double>(dim));
    s.softcap = softcap;
    s.window = window;
    return s;
  }
  /// The first key that query i sees.
  std::int64_t first_key(std::int64_t sample, std::int64_t i) const {
    std::int64_t const first = documents.empty() ? 0 : documents[static_cast<std::size_t>(sample * seq + i)];
    return window > 0 ? std::max(first, i + 1 - window) : first;
  }
  kernels::Dropout dropout() const { return kernels::make_dropout(rate, 5, "attention"); }
  std::string name() const {
    return "samples" + std::to_string(samples) + "_seq" + std::to_string(seq) + "_heads" + std::to_string(heads) + "_" +
           std::to_string(kv_heads) + "_dim" + std::to_string(dim) +
           (value_dim > 0 ? "_values" + std::to_string(value_dim) : "") + (rate > 0 ? "_dropout" : "") +
           (softcap > 0 ? "_cap" : "");
  }
};
/// A case whose heads of values are so wide.
inline Case with_values(Case c, std::int64_t value_dim) {
  c.value_dim = value_dim;
  return c;
}

/// A case whose scores have a cap.
inline Case with_cap(Case c, double softcap) {
  c.softcap = softcap;
  return c;
}

/// The first token of each one's document, for documents of these lengths, again and again.
inline std::vector<int> documents_of(std::int64_t samples, std::int64_t seq, std::vector<int> const& lengths) {
  std::vector<int> out;
  std::size_t next = 0;
  for (std::int64_t s = 0; s < samples; ++s)
    for (int first = 0; first < seq;) {
      int const end = std::min(static_cast<int>(seq), first + lengths[next++ % lengths.size()]);
      out.insert(out.end(), static_cast<std::size_t>(end - first), first);
      first = end;
    }
  return out;
}

struct Output {
  Vec out, lse;
};

/// Columns of queries, keys and values in a matrix that holds all three.
template <class T>
struct Parts {
  kernels::HeadRows<T> q, k, v;
  Parts(Case const& c, View2<T> const& m)
      : q(kernels::heads_of(m)),
        k(kernels::heads_of(m, c.heads * c.dim)),
        v(kernels::heads_of(m, (c.heads + c.kv_heads) * c.dim)) {}
};

/// What a call of attention works in.
template <class T>
struct Scratch {
  Owned1<std::byte> memory;
  explicit Scratch(kernels::AttentionShape const& shape)
      : memory("p3d::test::scratch", kernels::attention_scratch_bytes<T>(shape)) {}
  operator kernels::AttentionScratch() const { return {memory.data(), static_cast<std::int64_t>(memory.extent(0))}; }
};

/// Self-attention.
template <class T>
void attend(Case const& c, kernels::AttentionShape const& shape, View2<T const> qkv, View2<T> out, View1<Acc<T>> lse) {
  Parts<T const> const in(c, qkv);
  auto const y = kernels::heads_of(out);
  Scratch<T> const scratch(shape);
  kernels::attention_forward<T>(ExecSpace(), shape, c.dropout(), scratch, in.q, in.k, in.v, kernels::Store::overwrite,
                                y, lse);
}
template <class T>
void attend_backward(Case const& c, kernels::AttentionShape const& shape, View2<T const> qkv, View2<T const> out,
                     View1<Acc<T> const> lse, View2<T const> dout, View2<T> dqkv) {
  Owned1<Acc<T>> const delta("p3d::test::delta", c.rows() * c.heads);
  kernels::attention_delta<T>(ExecSpace(), shape, kernels::heads_of(out), kernels::heads_of(dout), delta);
  Parts<T const> const in(c, qkv);
  Parts<T> const d(c, dqkv);
  auto const overwrite = kernels::Store::overwrite;
  Scratch<T> const scratch(shape);
  kernels::attention_backward<T>(ExecSpace(), shape, c.dropout(), scratch, in.q, in.k, in.v, kernels::heads_of(dout),
                                 lse, View1<Acc<T> const>(delta), overwrite, d.q, overwrite, d.k, d.v);
}

template <class T>
Output forward(Case const& c, Vec const& qkv) {
  Owned2<T> const out("p3d::test::out", c.rows(), c.out_width());
  Owned1<Acc<T>> const lse("p3d::test::lse", c.rows() * c.heads);
  Kokkos::deep_copy(out, static_cast<T>(std::nan("")));  // must be overwritten
  auto const documents = ints_of(c.documents);
  auto shape = c.shape();
  shape.documents = documents;
  attend<T>(c, shape, matrix_of<T>(c.rows(), c.width(), qkv), out, lse);
  return {host(out), host(lse)};
}

template <class T>
Vec backward(Case const& c, Vec const& qkv, Vec const& dout, Output const& saved) {
  Owned2<T> const dqkv("p3d::test::dqkv", c.rows(), c.width());
  Kokkos::deep_copy(dqkv, static_cast<T>(std::nan("")));
  auto const documents = ints_of(c.documents);
  auto shape = c.shape();
  shape.documents = documents;
  auto const lse = vector_of<Acc<T>>(saved.lse);
  attend_backward<T>(c, shape, matrix_of<T>(c.rows(), c.width(), qkv), matrix_of<T>(c.rows(), c.out_width(), saved.out),
                     lse, matrix_of<T>(c.rows(), c.out_width(), dout), dqkv);
  return host(dqkv);
}
template <class T>
Vec backward(Case const& c, Vec const& qkv, Vec const& dout) {
  return backward<T>(c, qkv, dout, forward<T>(c, qkv));
}

/// The whole matrix of probabilities of one head, its dropout factors, and where things lie in qkv.
struct Head {
  Case const& c;
  std::int64_t sample, head;
  std::int64_t row(std::int64_t i) const { return (sample * c.seq + i) * c.width(); }
  std::int64_t kv() const { return head / (c.heads / c.kv_heads); }
  std::int64_t q(std::int64_t i, std::int64_t d) const { return row(i) + head * c.dim + d; }
  std::int64_t k(std::int64_t i, std::int64_t d) const { return row(i) + (c.heads + kv()) * c.dim + d; }
  std::int64_t v(std::int64_t i, std::int64_t d) const {
    return row(i) + (c.heads + c.kv_heads) * c.dim + kv() * c.values() + d;
  }
  std::int64_t o(std::int64_t i, std::int64_t d) const {
    return (sample * c.seq + i) * c.out_width() + head * c.values() + d;
  }
  double factor(std::int64_t i, std::int64_t j) const {
    auto const drop = c.dropout();
    if (!drop.active()) return 1.0;
    auto const index = ((c.first_head + head) * c.seq + i) * c.seq + j;
    return p3d::base::random_word(drop.key, c.first_sample + sample, index) >= drop.threshold ? drop.scale : 0.0;
  }
  /// The hyperbolic tangent of a score divided by its cap.
  double tangent(Vec const& qkv, std::int64_t i, std::int64_t j) const {
    return std::tanh(scaled(qkv, i, j) / c.softcap);
  }
  double scaled(Vec const& qkv, std::int64_t i, std::int64_t j) const {
    double s = 0;
    for (std::int64_t d = 0; d < c.dim; ++d) s += qkv[q(i, d)] * qkv[k(j, d)];
    return s / std::sqrt(static_cast<double>(c.dim));
  }
  double score(Vec const& qkv, std::int64_t i, std::int64_t j) const {
    return c.softcap > 0 ? c.softcap * tangent(qkv, i, j) : scaled(qkv, i, j);
  }
  /// The derivative of score() by scaled().
  double slope(Vec const& qkv, std::int64_t i, std::int64_t j) const {
    return c.softcap > 0 ? 1.0 - std::pow(tangent(qkv, i, j), 2) : 1.0;
  }
  /// Row i of the probabilities; returns the log-sum-exp.
  double probabilities(Vec const& qkv, std::int64_t i, Vec& p) const {
    p.assign(c.seq, 0.0);
    double sum = 0;
    for (std::int64_t j = c.first_key(sample, i); j <= i; ++j) {
      p[j] = std::exp(score(qkv, i, j));
      sum += p[j];
    }
    for (double& x : p) x /= sum;
    return std::log(sum);
  }
};

inline Output plain(Case const& c, Vec const& qkv) {
  Output y{Vec(c.rows() * c.out_width(), 0.0), Vec(c.rows() * c.heads)};
  Vec p;
  for (std::int64_t sample = 0; sample < c.samples; ++sample)
    for (std::int64_t head = 0; head < c.heads; ++head)
      for (std::int64_t i = c.first_query; i < c.seq; ++i) {
        Head const h{c, sample, head};
        y.lse[(sample * c.heads + head) * c.seq + i] = h.probabilities(qkv, i, p);
        for (std::int64_t j = 0; j <= i; ++j)
          for (std::int64_t d = 0; d < c.values(); ++d) y.out[h.o(i, d)] += p[j] * h.factor(i, j) * qkv[h.v(j, d)];
      }
  return y;
}

/// Through the Jacobian of softmax: ds_j = sum_l dp_l p_l (delta_jl - p_j).
inline Vec plain_gradient(Case const& c, Vec const& qkv, Vec const& dout) {
  Vec g(c.rows() * c.width(), 0.0), p, dp(c.seq), m(c.seq);
  double const scale = 1.0 / std::sqrt(static_cast<double>(c.dim));
  for (std::int64_t sample = 0; sample < c.samples; ++sample)
    for (std::int64_t head = 0; head < c.heads; ++head)
      for (std::int64_t i = c.first_query; i < c.seq; ++i) {
        Head const h{c, sample, head};
        h.probabilities(qkv, i, p);
        double mean = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          m[j] = h.factor(i, j);
          dp[j] = 0;
          for (std::int64_t d = 0; d < c.values(); ++d) {
            dp[j] += m[j] * dout[h.o(i, d)] * qkv[h.v(j, d)];
            g[h.v(j, d)] += p[j] * m[j] * dout[h.o(i, d)];
          }
          mean += p[j] * dp[j];
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          double const ds = scale * p[j] * (dp[j] - mean) * h.slope(qkv, i, j);
          for (std::int64_t d = 0; d < c.dim; ++d) {
            g[h.q(i, d)] += ds * qkv[h.k(j, d)];
            g[h.k(j, d)] += ds * qkv[h.q(i, d)];
          }
        }
      }
  return g;
}

/// Expects the plain numbers of both directions, whoever computes them: the backward pass is given the whole output, as
/// a vendor's library wants it.
template <class S>
void expect_plain(Case const& c) {
  auto const qkv = rounded<S>(random_values("qkv", c.rows() * c.width())),
             dout = rounded<S>(random_values("dout", c.rows() * c.out_width()));
  auto const found = forward<S>(c, qkv);
  auto const expected = plain(c, qkv);
  expect_close(found.out, expected.out, roundoff<S>, "out");
  expect_close(found.lse, expected.lse, 4e-6, "lse");
  Owned2<S> const dqkv("p3d::test::dqkv", c.rows(), c.width());
  auto const out = matrix_of<S>(c.rows(), c.out_width(), found.out), dy = matrix_of<S>(c.rows(), c.out_width(), dout),
             x = matrix_of<S>(c.rows(), c.width(), qkv);
  auto const lse = vector_of<Acc<S>>(found.lse);
  Owned1<Acc<S>> const delta("p3d::test::delta", c.rows() * c.heads);
  Parts<S const> const in(c, View2<S const>(x));
  Parts<S> const d(c, dqkv);
  auto const documents = ints_of(c.documents);
  auto shape = c.shape();
  shape.documents = documents;
  Scratch<S> const scratch(shape);
  auto const overwrite = kernels::Store::overwrite;
  kernels::attention_backward<S>(ExecSpace(), shape, c.dropout(), scratch, in.q, in.k, in.v,
                                 kernels::heads_of(View2<S const>(dy)), View1<Acc<S> const>(lse),
                                 View1<Acc<S> const>(delta), overwrite, d.q, overwrite, d.k, d.v,
                                 {{out.data(), static_cast<std::int64_t>(out.stride(0))}, View1<Acc<S>>(delta)});
  expect_close(host(dqkv), plain_gradient(c, qkv, dout), 3 * roundoff<S>, "dqkv");
}

/// Some column ranges (begin, count) of a matrix, side by side.
inline Vec columns_of(Vec const& m, std::int64_t width,
                      std::vector<std::pair<std::int64_t, std::int64_t>> const& ranges) {
  Vec out;
  for (std::size_t row = 0; row < m.size(); row += width)
    for (auto [begin, count] : ranges) out.insert(out.end(), m.begin() + row + begin, m.begin() + row + begin + count);
  return out;
}

}  // namespace attention_test
