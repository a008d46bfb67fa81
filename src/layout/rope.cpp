// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/rope.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace p3d::layout {

namespace {

/// The pair, as a number with a fraction, that makes so many turns in the original length.
double pair_with_turns(double turns, double theta, config::Model const& m) {
  double const length = static_cast<double>(m.rope_original_seq_len) / (turns * 2.0 * std::numbers::pi);
  return static_cast<double>(m.rotary_dim()) * std::log(length) / (2.0 * std::log(theta));
}

/// The frequency of a pair stretched by YaRN: pairs up to `first` keep it, those from `last` on are slow, and between
/// them the share is linear in the pair's number.
double yarn(double frequency, double pair, double theta, config::Model const& m) {
  double first = pair_with_turns(m.rope_beta_fast, theta, m), last = pair_with_turns(m.rope_beta_slow, theta, m);
  if (m.rope_truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(m.rotary_dim() - 1));
  if (first == last) last += 0.001;
  double const slow = std::clamp((pair - first) / (last - first), 0.0, 1.0);
  return frequency / m.rope_scaling_factor * slow + frequency * (1.0 - slow);
}

/// A frequency stretched as model.rope_scaling says, but for longrope.
double stretched(double frequency, double pair, double theta, config::Model const& m) {
  if (m.rope_scaling == config::RopeScaling::yarn) return yarn(frequency, pair, theta, m);
  double const slow = frequency / m.rope_scaling_factor;
  if (m.rope_scaling == config::RopeScaling::linear) return slow;
  double const rotations = static_cast<double>(m.rope_original_seq_len) * frequency / (2.0 * std::numbers::pi);
  if (rotations < m.rope_low_freq_factor) return slow;
  if (rotations > m.rope_high_freq_factor) return frequency;
  double const share = (rotations - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
  return (1.0 - share) * slow + share * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(config::Model const& m, std::int64_t layer, RopeLength length) {
  if (m.position != config::Position::rope) return {};
  auto const rotary_dim = m.rotary_dim();
  P3D_REQUIRE(rotary_dim % 2 == 0, "rotary embedding pairs dimensions: their number must be even");
  double const step = -2.0 * std::log(m.rope_theta_of(layer)) / static_cast<double>(rotary_dim);
  std::vector<double> out(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::exp(step * static_cast<double>(i));
    if (!m.scales_rope(layer)) continue;
    if (m.rope_scaling == config::RopeScaling::longrope)
      out[i] /= (length == RopeLength::beyond_original ? m.rope_long_factors : m.rope_short_factors).at(i);
    else
      out[i] = stretched(out[i], static_cast<double>(i), m.rope_theta_of(layer), m);
  }
  return out;
}

bool rope_depends_on_length(config::Model const& m, std::int64_t layer) {
  return m.position == config::Position::rope && m.rope_scaling == config::RopeScaling::longrope &&
         m.scales_rope(layer);
}

double rope_factor(config::Model const& m, std::int64_t layer) {
  bool const yarn = m.rope_scaling == config::RopeScaling::yarn;
  if (!m.scales_rope(layer) || (!yarn && m.rope_scaling != config::RopeScaling::longrope)) return 1.0;
  if (m.rope_attention_factor > 0) return m.rope_attention_factor;
  double const log = std::log(m.rope_scaling_factor);
  return yarn ? 0.1 * log + 1.0 : std::sqrt(1.0 + log / std::log(static_cast<double>(m.rope_original_seq_len)));
}

}  // namespace p3d::layout
