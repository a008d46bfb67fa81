// SPDX-License-Identifier: Apache-2.0
#pragma once
// A library of attention as one kernel, for tests: loops on the host.

#include <kernels/attention_fused.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace p3d::test {

using kernels::FusedCall;

/// Attention as FusedCall describes it, by loops. Its plans ask for so many bytes for each query and key of a head (two
/// in cuDNN's deterministic backward pass).
template <class S>
class FusedLoops final : public kernels::FusedAttention {
public:
  explicit FusedLoops(std::int64_t bytes_of_pair = 0) : bytes_of_pair_(bytes_of_pair) {}
  std::string name() const override { return "loops"; }
  std::string refusal() const override { return refusal_; }
  std::optional<std::int64_t> plan(FusedCall::Shape const& s, bool) override {
    refusal_ = s.head_dim > 64 ? "no more than 64" : "";
    if (!refusal_.empty()) return std::nullopt;
    return bytes_of_pair_ * s.samples * s.heads * s.seq_len * s.seq_len;
  }
  bool forward(FusedCall const& c) override {
    pieces.emplace_back(c.samples, c.kv_heads);
    for_heads(c, [&](auto const& at) {
      for (std::int64_t i = 0; i < c.seq_len; ++i) {
        std::vector<double> p;
        auto const [first, top, sum] = row(c, at, i, p);
        for (std::int64_t d = 0; d < c.value_dim; ++d) {
          double y = 0;
          for (std::size_t j = 0; j < p.size(); ++j) y += p[j] / sum * at.v(first + static_cast<std::int64_t>(j), d);
          at.out(i, d) = static_cast<S>(static_cast<float>(y));
        }
        c.lse[at.statistics + i] = static_cast<float>(top + std::log(sum));
      }
    });
    return true;
  }
  bool backward(FusedCall const& c) override {
    pieces.emplace_back(c.samples, c.kv_heads);
    std::int64_t const group = c.heads / c.kv_heads;
    auto const keys = static_cast<std::size_t>(c.samples * c.kv_heads * c.seq_len);
    std::vector<double> dk(keys * static_cast<std::size_t>(c.head_dim)),
        dv(keys * static_cast<std::size_t>(c.value_dim));
    for_heads(c, [&](auto const& at) {
      auto const key = [&](std::int64_t j) { return (at.sample * c.kv_heads + at.head / group) * c.seq_len + j; };
      auto const dk_of = [&](std::int64_t j, std::int64_t d) -> double& {
        return dk[static_cast<std::size_t>(key(j) * c.head_dim + d)];
      };
      auto const dv_of = [&](std::int64_t j, std::int64_t d) -> double& {
        return dv[static_cast<std::size_t>(key(j) * c.value_dim + d)];
      };
      for (std::int64_t i = 0; i < c.seq_len; ++i) {
        std::vector<double> p;
        auto const first = std::get<0>(row(c, at, i, p));
        double delta = 0;
        for (std::int64_t d = 0; d < c.value_dim; ++d) delta += double(at.out(i, d)) * double(at.dout(i, d));
        std::vector<double> dq(static_cast<std::size_t>(c.head_dim));
        for (std::size_t n = 0; n < p.size(); ++n) {
          auto const j = first + static_cast<std::int64_t>(n);
          double dp = 0;
          auto const [score, slope] = score_of(c, at, i, j);
          for (std::int64_t d = 0; d < c.value_dim; ++d) dp += double(at.dout(i, d)) * double(at.v(j, d));
          double const prob = std::exp(score - double(c.lse[at.statistics + i]));
          double const ds = prob * (dp - delta) * slope * c.scale;
          for (std::int64_t d = 0; d < c.head_dim; ++d) {
            dq[static_cast<std::size_t>(d)] += ds * double(at.k(j, d));
            dk_of(j, d) += ds * double(at.q(i, d));
          }
          for (std::int64_t d = 0; d < c.value_dim; ++d) dv_of(j, d) += prob * double(at.dout(i, d));
        }
        for (std::int64_t d = 0; d < c.head_dim; ++d)
          at.dq(i, d) = static_cast<S>(static_cast<float>(dq[static_cast<std::size_t>(d)]));
      }
      for (std::int64_t j = 0; j < c.seq_len; ++j) {
        for (std::int64_t d = 0; d < c.head_dim; ++d) at.dk(j, d) = static_cast<S>(static_cast<float>(dk_of(j, d)));
        for (std::int64_t d = 0; d < c.value_dim; ++d) at.dv(j, d) = static_cast<S>(static_cast<float>(dv_of(j, d)));
      }
    });
    return true;
  }

  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;  ///< samples and kv heads of each call

private:
  struct Matrix {
    S* data;
    std::int64_t stride;
    S& operator()(std::int64_t i, std::int64_t d) const { return data[i * stride + d]; }
  };
  struct Head {
    std::int64_t sample, head, statistics;
    Matrix q, k, v, out, dout, dq, dk, dv;
  };
  /// Calls `body` for each head, inside a kernel: a library may touch device memory, and the guard knows it by that.
  template <class Body>
  static void for_heads(FusedCall const& c, Body const& body) {
    Kokkos::parallel_for("p3d::test::fused_loops", Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, 1),
                         [&](int) {
                           for (std::int64_t sample = 0; sample < c.samples; ++sample)
                             for (std::int64_t head = 0; head < c.heads; ++head) body(head_at(c, sample, head));
                         });
  }
  static Head head_at(FusedCall const& c, std::int64_t sample, std::int64_t head) {
    auto const kv = head / (c.heads / c.kv_heads);
    auto const at = [&](FusedCall::Rows r, std::int64_t column) {
      return Matrix{static_cast<S*>(r.data) + sample * c.seq_len * r.stride + column, r.stride};
    };
    auto const q = head * c.head_dim, k = kv * c.head_dim, v = kv * c.value_dim, y = head * c.value_dim;
    return {sample,       head,          (sample * c.heads + head) * c.seq_len,
            at(c.q, q),   at(c.k, k),    at(c.v, v),
            at(c.out, y), at(c.dout, y), at(c.dq, q),
            at(c.dk, k),  at(c.dv, v)};
  }
  /// The score of query i and key j, and its derivative by the score without a cap.
  static std::pair<double, double> score_of(FusedCall const& c, Head const& at, std::int64_t i, std::int64_t j) {
    double score = 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d) score += c.scale * double(at.q(i, d)) * double(at.k(j, d));
    if (c.softcap <= 0) return {score, 1.0};
    double const tangent = std::tanh(score / c.softcap);
    return {c.softcap * tangent, 1 - tangent * tangent};
  }
  /// exp(score - top) of the keys that query i sees, in p: the first of them, top and their sum.
  static std::tuple<std::int64_t, double, double> row(FusedCall const& c, Head const& at, std::int64_t i,
                                                      std::vector<double>& p) {
    std::int64_t first = c.window > 0 ? std::max<std::int64_t>(0, i + 1 - c.window) : 0;
    if (c.documents != nullptr) first = std::max<std::int64_t>(first, c.documents[at.sample * c.seq_len + i]);
    double top = -1e300, sum = 0;
    for (std::int64_t j = first; j <= i; ++j) {
      double const score = score_of(c, at, i, j).first;
      p.push_back(score);
      top = std::max(top, score);
    }
    for (auto& x : p) sum += x = std::exp(x - top);
    return {first, top, sum};
  }
  std::int64_t bytes_of_pair_;
  std::string refusal_;
};

}  // namespace p3d::test
