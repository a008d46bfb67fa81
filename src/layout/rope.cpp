// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/rope.hpp>

#include <p3d/base/error.hpp>

#include <cmath>
#include <numbers>

namespace p3d::layout {

namespace {

/// A frequency stretched by linear or llama3 scaling.
double stretched(double frequency, config::Model const& m) {
  double const slow = frequency / m.rope_scaling_factor;
  if (m.rope_scaling == config::RopeScaling::linear) return slow;
  double const rotations = static_cast<double>(m.rope_original_seq_len) * frequency / (2.0 * std::numbers::pi);
  if (rotations < m.rope_low_freq_factor) return slow;
  if (rotations > m.rope_high_freq_factor) return frequency;
  double const share = (rotations - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
  return (1.0 - share) * slow + share * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(config::Model const& m) {
  if (m.position != config::Position::rope) return {};
  auto const head_dim = m.head_dim();
  P3D_REQUIRE(head_dim % 2 == 0, "rotary embedding pairs dimensions: head_dim must be even");
  double const step = -2.0 * std::log(m.rope_theta) / static_cast<double>(head_dim);
  std::vector<double> out(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::exp(step * static_cast<double>(i));
    if (m.rope_scaling != config::RopeScaling::none) out[i] = stretched(out[i], m);
  }
  return out;
}

}  // namespace p3d::layout
