// SPDX-License-Identifier: Apache-2.0
#include "plain_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace p3d::test {

Plain const* PlainLayer::find(std::string const& name) const {
  auto const found = params.find("layers.0." + name);
  return found == params.end() ? nullptr : &found->second;
}

Plain PlainLayer::linear(Plain const& x, std::string const& name, bool bias) const {
  auto const& w = *find(name + ".weight");
  auto const* b = bias ? find(name + ".bias") : nullptr;
  Plain y(x.rows, w.rows);
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t o = 0; o < w.rows; ++o) {
      Complex sum = b ? (*b)(0, o) : Complex();
      for (std::int64_t i = 0; i < w.cols; ++i) sum += x(r, i) * w(o, i);
      y(r, o) = sum;
    }
  return y;
}

Plain PlainLayer::norm(std::string const& name, Plain const& x) const {
  auto const& w = *find(name + ".weight");
  auto const* b = find(name + ".bias");
  bool const centred = c_.model.norm == config::Norm::layernorm;
  Plain y(x.rows, x.cols);
  auto const n = static_cast<double>(x.cols);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    Complex mean, squares;
    for (std::int64_t i = 0; i < x.cols && centred; ++i) mean += x(r, i) / n;
    for (std::int64_t i = 0; i < x.cols; ++i) squares += (x(r, i) - mean) * (x(r, i) - mean) / n;
    for (std::int64_t i = 0; i < x.cols; ++i)
      y(r, i) = (x(r, i) - mean) / std::sqrt(squares + c_.model.norm_eps) * (w(0, i) + offset()) +
                (b ? (*b)(0, i) : Complex());
  }
  return y;
}

PlainLayer::Kept PlainLayer::kept(std::string const& site) const {
  if (c_.model.dropout == 0) return [](std::int64_t, std::int64_t) { return 1.0; };
  auto const d = kernels::make_dropout(c_.model.dropout, c_.run.seed, "dropout.layers.0." + site);
  return [d, first = first_sample_](std::int64_t sample, std::int64_t index) {
    auto const stream = static_cast<std::uint64_t>(first + sample);
    return base::random_word(d.key, stream, static_cast<std::uint64_t>(index)) >= d.threshold ? d.scale : 0.0;
  };
}

void PlainLayer::rms_norm(Plain& x, std::string const& name, std::int64_t n, double eps) const {
  auto const& w = *find(name + ".weight");
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t begin = 0; begin < x.cols; begin += n) {
      Complex squares;
      for (std::int64_t i = 0; i < n; ++i) squares += x(r, begin + i) * x(r, begin + i) / static_cast<double>(n);
      for (std::int64_t i = 0; i < n; ++i) x(r, begin + i) *= (w(0, i) + offset()) / std::sqrt(squares + eps);
    }
}

void PlainLayer::qk_norm(Plain& x, std::string const& name) const {
  if (c_.model.qk_norm == config::QkNorm::none) return;
  rms_norm(x, name, c_.model.qk_norm == config::QkNorm::full ? x.cols : c_.model.head_dim(), c_.model.norm_eps);
}

void PlainLayer::rotate(Plain& x, std::int64_t first) const {
  if (c_.model.position != config::Position::rope) return;
  auto const n = c_.model.rotary_dim();
  bool const halves = c_.model.rope_pairs == config::RopePairs::halves;
  bool const scaled = c_.model.rope_scaling == config::RopeScaling::longrope;
  bool const is_long = c_.model.seq_len > c_.model.rope_original_seq_len;
  auto const& divisors = is_long ? c_.model.rope_long_factors : c_.model.rope_short_factors;
  double const factor = scaled ? c_.model.rope_attention_factor : 1.0;
  for (std::int64_t i = 0; i < n / 2; ++i) {
    double const rate = std::pow(c_.model.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(n)) /
                        (scaled ? divisors[static_cast<std::size_t>(i)] : 1.0);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      double const angle = static_cast<double>(r % c_.model.seq_len) * rate;
      double const cosine = factor * std::cos(angle), sine = factor * std::sin(angle);
      for (std::int64_t begin = first; begin < x.cols; begin += c_.model.head_dim()) {
        auto const one = begin + (halves ? i : 2 * i), other = begin + (halves ? i + n / 2 : 2 * i + 1);
        auto const a = x(r, one), b = x(r, other);
        x(r, one) = a * cosine - b * sine;
        x(r, other) = b * cosine + a * sine;
      }
    }
  }
}

namespace {

/// Columns [begin, end) of a matrix.
Plain columns(Plain const& x, std::int64_t begin, std::int64_t end) {
  Plain y(x.rows, end - begin);
  for (std::int64_t r = 0; r < y.rows; ++r)
    for (std::int64_t c = 0; c < y.cols; ++c) y(r, c) = x(r, begin + c);
  return y;
}

}  // namespace

Plain PlainLayer::attention(Plain const& normed) const {
  if (c_.model.mla.on()) return latent_attention(normed);
  auto q = linear(normed, "attn.q"), k = linear(normed, "attn.k"), v = linear(normed, "attn.v");
  qk_norm(q, "attn.q_norm");
  qk_norm(k, "attn.k_norm");
  rotate(q, 0);
  rotate(k, 0);
  return linear(attend(q, k, v), "attn.out", false);
}

Plain PlainLayer::latent_attention(Plain const& normed) const {
  auto const& a = c_.model.mla;
  auto const heads = c_.model.heads, key = c_.model.head_dim(), both = a.kv_head_dim();
  Plain q;
  if (a.q_lora_rank > 0) {
    auto latent = linear(normed, "attn.q_down");
    rms_norm(latent, "attn.q_latent_norm", a.q_lora_rank, a.norm_eps);
    q = linear(latent, "attn.q_up");
  } else {
    q = linear(normed, "attn.q");
  }
  auto const down = linear(normed, "attn.kv_down");
  auto latent = columns(down, 0, a.kv_lora_rank);
  auto const shared = columns(down, a.kv_lora_rank, down.cols);
  rms_norm(latent, "attn.kv_latent_norm", a.kv_lora_rank, a.norm_eps);
  auto const kv = linear(latent, "attn.kv_up");
  Plain k(q.rows, heads * key), v(q.rows, heads * a.v_head_dim);
  for (std::int64_t r = 0; r < q.rows; ++r)
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t e = 0; e < key; ++e)
        k(r, h * key + e) = e < a.qk_nope_head_dim ? kv(r, h * both + e) : shared(r, e - a.qk_nope_head_dim);
      for (std::int64_t e = 0; e < a.v_head_dim; ++e)
        v(r, h * a.v_head_dim + e) = kv(r, h * both + a.qk_nope_head_dim + e);
    }
  rotate(q, a.qk_nope_head_dim);
  rotate(k, a.qk_nope_head_dim);
  return linear(attend(q, k, v), "attn.out", false);
}

Plain PlainLayer::attend(Plain const& q, Plain const& k, Plain const& v) const {
  auto const n = c_.model.head_dim(), heads = q.cols / n, of_one = heads / (k.cols / n), length = c_.model.seq_len;
  auto const width = v.cols / (k.cols / n);
  auto const* sinks = find("attn.sinks");
  auto const keep = kept("attn.probability");
  Plain out(q.rows, heads * width);
  for (std::int64_t r = 0; r < q.rows; ++r)
    for (std::int64_t h = 0; h < heads; ++h) {
      auto const sample = r / length, query = r % length, kv = h / of_one;
      std::vector<Complex> p;
      Complex sum = sinks ? std::exp((*sinks)(0, h)) : Complex();
      for (std::int64_t key = 0; key <= query; ++key) {
        Complex score;
        for (std::int64_t e = 0; e < n; ++e) score += q(r, h * n + e) * k(sample * length + key, kv * n + e);
        auto const factor = c_.model.attention_multiplier;
        score = factor > 0 ? score * factor : score / std::sqrt(static_cast<double>(n));
        if (auto const cap = c_.model.attention_softcap; cap > 0) score = cap * std::tanh(score / cap);
        p.push_back(std::exp(score));
        sum += p.back();
      }
      for (std::int64_t key = 0; key <= query; ++key) {
        auto const weight = keep(sample, (h * length + query) * length + key) * p[static_cast<std::size_t>(key)] / sum;
        for (std::int64_t e = 0; e < width; ++e)
          out(r, h * width + e) += weight * v(sample * length + key, kv * width + e);
      }
    }
  return out;
}

Complex PlainLayer::activation(Complex gate, Complex up) const {
  if (c_.model.activation == config::Activation::swiglu) return gate / (1.0 + std::exp(-gate)) * up;
  if (c_.model.activation == config::Activation::swiglu_clamped) {
    double const limit = c_.model.swiglu_limit;
    auto const x = gate.real() > limit ? Complex(limit) : gate;
    auto const y = std::abs(up.real()) > limit ? Complex(std::copysign(limit, up.real())) : up;
    return (y + 1.0) * x / (1.0 + std::exp(-c_.model.swiglu_alpha * x));
  }
  auto const gelu = [](Complex x) {
    return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  };
  return c_.model.activation == config::Activation::geglu ? gelu(gate) * up : gelu(up);
}

void PlainLayer::xielu(Plain& x, std::string const& prefix) const {
  auto const softplus = [&](char const* name) { return std::log(1.0 + std::exp((*find(prefix + name))(0, 0))); };
  auto const positive = softplus("alpha_p"), negative = 0.5 + softplus("alpha_n");
  for (auto& e : x.data) e = (e.real() > 0 ? positive * e * e : negative * (std::exp(e) - 1.0 - e)) + 0.5 * e;
}

Plain PlainLayer::mlp(Plain const& normed, std::string const& prefix) const {
  auto act = linear(normed, prefix + "up");
  if (c_.model.activation == config::Activation::xielu) {
    xielu(act, prefix);
  } else {
    auto const gate = find(prefix + "gate.weight") ? linear(normed, prefix + "gate") : act;
    for (std::size_t i = 0; i < act.data.size(); ++i) act.data[i] = activation(gate.data[i], act.data[i]);
  }
  return linear(act, prefix + "down", false);
}

Plain PlainLayer::experts(Plain const& normed) const {
  auto const& m = c_.model.moe;
  auto const &up = *find("moe.experts.up.weight"), &down = *find("moe.experts.down.weight");
  auto const* gate = find("moe.experts.gate.weight");
  auto logits = linear(normed, "moe.router");
  auto const bias = [&](char const* name, std::int64_t row, std::int64_t column) {
    auto const* b = find(name);
    return b ? (*b)(row, column) : Complex();
  };
  for (std::int64_t r = 0; r < logits.rows; ++r)
    for (std::int64_t e = 0; e < m.experts; ++e) logits(r, e) += bias("moe.router.linear_bias", 0, e);
  Plain y(normed.rows, normed.cols);
  for (std::int64_t r = 0; r < y.rows; ++r) {
    std::vector<std::int64_t> order;
    Complex sum, chosen;
    for (std::int64_t e = 0; e < m.experts; ++e) {
      order.push_back(e);
      sum += std::exp(logits(r, e));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return logits(r, a).real() > logits(r, b).real(); });
    order.resize(static_cast<std::size_t>(m.top_k));
    for (auto const e : order) chosen += std::exp(logits(r, e)) / sum;
    for (auto const e : order) {
      auto const weight = m.scale * std::exp(logits(r, e)) / sum / (m.normalize ? chosen : Complex(1.0));
      for (std::int64_t i = 0; i < y.cols; ++i) y(r, i) += weight * bias("moe.experts.down.bias", e, i);
      for (std::int64_t f = 0; f < up.cols; ++f) {
        auto in = bias("moe.experts.up.bias", e, f), in_gate = bias("moe.experts.gate.bias", e, f);
        for (std::int64_t i = 0; i < normed.cols; ++i) {
          in += normed(r, i) * up(e * normed.cols + i, f);
          if (gate) in_gate += normed(r, i) * (*gate)(e * normed.cols + i, f);
        }
        auto const act = weight * activation(in_gate, in);
        for (std::int64_t i = 0; i < y.cols; ++i) y(r, i) += act * down(e * normed.cols + i, f);
      }
    }
  }
  return y;
}

Plain PlainLayer::feed_forward(Plain const& normed) const {
  if (!c_.model.moe.on()) return mlp(normed, "mlp.");
  auto y = experts(normed);
  if (c_.model.moe.shared_ffn == 0) return y;
  auto const shared = mlp(normed, "moe.shared.");
  auto const gates = c_.model.moe.shared_gate ? linear(normed, "moe.shared_gate") : Plain();
  for (std::int64_t r = 0; r < y.rows; ++r) {
    auto const gate = c_.model.moe.shared_gate ? 1.0 / (1.0 + std::exp(-gates(r, 0))) : Complex(1.0);
    for (std::int64_t i = 0; i < y.cols; ++i) y(r, i) += gate * shared(r, i);
  }
  return y;
}

Plain PlainLayer::add(Plain const& x, Plain branch, std::string const& bias, std::string const& norm_behind,
                      std::string const& site) const {
  auto const* b = find(bias);
  for (std::int64_t r = 0; b && r < x.rows; ++r)
    for (std::int64_t i = 0; i < x.cols; ++i) branch(r, i) += (*b)(0, i);
  if (c_.model.norm_placement != config::NormPlacement::pre) branch = norm(norm_behind, branch);
  auto y = x;
  auto const keep = kept(site);
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t i = 0; i < x.cols; ++i)
      y(r, i) +=
          c_.model.residual_multiplier * keep(r / c_.model.seq_len, r % c_.model.seq_len * x.cols + i) * branch(r, i);
  return y;
}

Plain PlainLayer::layer(Plain const& x) const {
  auto const before = [&](char const* name, Plain const& stream) {
    return c_.model.norm_placement == config::NormPlacement::post ? stream : norm(name, stream);
  };
  auto const mid = add(x, attention(before("norm1", x)), "attn.out.bias", "post_norm1", "attn.out");
  return add(mid, feed_forward(before("norm2", mid)), "mlp.down.bias", "post_norm2", "mlp.out");
}

Plain derivative(Plain& x, Plain const& gradient, std::function<Plain()> const& result, Share share) {
  constexpr double h = 1e-30;
  Plain out(x.rows, x.cols);
  for (std::size_t i = share.first; i < x.data.size(); i += share.stride) {
    auto const before = x.data[i];
    x.data[i] += Complex(0.0, h);
    auto const y = result();
    x.data[i] = before;
    for (std::size_t j = 0; j < y.data.size(); ++j) out.data[i] += gradient.data[j].real() * y.data[j].imag() / h;
  }
  return out;
}

}  // namespace p3d::test
