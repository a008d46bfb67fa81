// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/common.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::kernels {

Dropout make_dropout(double rate, std::uint64_t seed, std::string_view site, double multiplier) {
  P3D_REQUIRE(rate >= 0.0 && rate < 1.0, "a dropout rate lies in [0, 1)");
  constexpr double words = 4294967296.0;  // 2^32
  double const threshold = std::min(std::round(rate * words), words - 1.0);
  Dropout dropout;
  dropout.key = base::random_key(seed, site);
  dropout.threshold = static_cast<std::uint32_t>(threshold);
  dropout.multiplier = multiplier;
  dropout.scale = dropout.active() ? multiplier / (1.0 - rate) : multiplier;
  return dropout;
}

}  // namespace p3d::kernels
