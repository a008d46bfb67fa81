// SPDX-License-Identifier: Apache-2.0
// Blending is defined sample by sample: the source of sample n depends on how often each was taken before. Samples are
// asked for in any order, and must not cost a walk from 0 each time: so counts are kept at places on the way, every
// stride_ samples; when there are too many places every other one is dropped and the stride doubled. An even blend also
// repeats after the sum of its weights, so that a run that goes on from sample 10^9 walks through a period at most.
// Example: weights 3 and 1 give 0 0 1 0, 0 0 1 0 and so on.
#include "data/blend.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace p3d::data {

namespace {

/// Most places whose counts are kept.
constexpr std::size_t most_places = 4096;

/// Adds as numpy.sum does, in its order of additions: the normalised weights depend on it.
double numpy_sum(double const* v, std::size_t n) {
  if (n < 8) {
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) sum += v[i];
    return sum;
  }
  if (n > 128) {
    auto const half = n / 2 - n / 2 % 8;
    return numpy_sum(v, half) + numpy_sum(v + half, n - half);
  }
  double r[8];
  std::copy_n(v, 8, r);
  std::size_t i = 8;
  for (; i < n - n % 8; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) r[k] += v[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += v[i];
  return sum;
}

std::vector<double> normalised(std::vector<double> weights) {
  double const sum = numpy_sum(weights.data(), weights.size());
  for (auto& w : weights) w /= sum;
  return weights;
}

}  // namespace

void Blend::move_to(std::int64_t wanted) const {
  // Go to a kept place when the cursor is behind `wanted`, or far before it.
  if (wanted < cursor_.sample || wanted - cursor_.sample > stride_) {
    auto const place = std::min<std::int64_t>(wanted / stride_, std::ssize(places_) - 1);
    if (wanted < cursor_.sample || place * stride_ > cursor_.sample)
      cursor_ = {place * stride_, places_[static_cast<std::size_t>(place)]};
  }
  while (cursor_.sample < wanted) {
    ++cursor_.counts[next(cursor_.sample, cursor_.counts)];
    ++cursor_.sample;
    if (cursor_.sample == std::ssize(places_) * stride_) keep(cursor_);
  }
}

Pick Blend::at(std::int64_t sample) const {
  P3D_REQUIRE(sample >= 0, "the sample number is not negative");
  auto const periods = period_ > 0 ? sample / period_ : 0;
  std::lock_guard const lock(mutex_);
  move_to(sample - periods * period_);
  auto const source = next(cursor_.sample, cursor_.counts);
  return {source, cursor_.counts[source] + (period_ > 0 ? periods * in_period_[source] : 0)};
}

Blend::Counts Blend::taken(std::int64_t sample) const {
  P3D_REQUIRE(sample >= 0, "the sample number is not negative");
  auto const periods = period_ > 0 ? sample / period_ : 0;
  std::lock_guard const lock(mutex_);
  move_to(sample - periods * period_);
  auto counts = cursor_.counts;
  for (std::size_t i = 0; i < counts.size() && period_ > 0; ++i) counts[i] += periods * in_period_[i];
  return counts;
}

void Blend::keep(Place const& place) const {
  places_.push_back(place.counts);
  if (places_.size() < most_places) return;
  for (std::size_t i = 0; 2 * i < places_.size(); ++i) places_[i] = places_[2 * i];
  places_.resize((places_.size() + 1) / 2);
  stride_ *= 2;
}

EvenBlend::EvenBlend(std::vector<std::int64_t> weights) : Blend(weights.size()), weights_(std::move(weights)) {
  // In a period of weights-sum samples each source comes as often as its weight says.
  in_period_ = weights_;
  period_ = std::accumulate(weights_.begin(), weights_.end(), std::int64_t{0});
  P3D_REQUIRE(weights_.size() >= 2 && weights_.size() < (1 << 15) && period_ <= (1 << 22) &&
                  *std::min_element(weights_.begin(), weights_.end()) > 0,
              "the products of weights fit 64 bits");
}

std::size_t EvenBlend::next(std::int64_t n, Counts const& counts) const {
  auto const factor = 2 * static_cast<std::int64_t>(weights_.size()) - 2;
  // Tijdeman's rule in whole numbers; all sides are multiplied by the period.
  std::size_t best = weights_.size();
  std::int64_t best_time = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    auto const behind = weights_[i] * (n + 1) - period_ * counts[i];  // w_i (n + 1) - taken_i, times the period
    if (factor * behind < period_) continue;
    auto const time = (factor - 1) * period_ - factor * behind;  // the time until it must come, times the weight
    if (best == weights_.size() || time * weights_[best] < best_time * weights_[i]) {
      best = i;
      best_time = time;
    }
  }
  P3D_REQUIRE(best < weights_.size(), "some source may come");
  return best;
}

MegatronBlend::MegatronBlend(std::vector<double> const& weights)
    : Blend(weights.size()), shares_(normalised(weights)), weights_(normalised(shares_)) {}

std::int64_t MegatronBlend::samples_of(std::size_t source, std::int64_t samples) const {
  // Megatron-LM prepares half a percent more than the share of a source, since its blend may take a few more.
  double const target = std::ceil(static_cast<double>(samples) * shares_[source]);
  return static_cast<std::int64_t>(std::ceil(target * (1.0 + 0.005)));
}

std::size_t MegatronBlend::next(std::int64_t n, Counts const& counts) const {
  double const place = std::max(static_cast<double>(n), 1.0);
  std::size_t best = 0;
  double most = 0.0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    double const volatile wanted = weights_[i] * place;  // rounded, as in numpy: not one fused operation
    double const error = wanted - static_cast<double>(counts[i]);
    if (i == 0 || error > most) {
      best = i;
      most = error;
    }
  }
  return best;
}

}  // namespace p3d::data
