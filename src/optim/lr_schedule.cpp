// SPDX-License-Identifier: Apache-2.0
#include <p3d/optim/lr_schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace p3d::optim {

double learning_rate(config::Optimizer const& o, std::int64_t step, std::int64_t steps) {
  if (step < o.warmup_steps) return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
  // x runs from 0 at the first step after the warm-up to 1 at the last step; a single step counts as the first.
  double const x = std::min(1.0, static_cast<double>(step - o.warmup_steps) /
                                     static_cast<double>(std::max<std::int64_t>(1, steps - 1 - o.warmup_steps)));
  switch (o.lr_schedule) {
    case config::LrSchedule::cosine: return o.min_lr + 0.5 * (o.lr - o.min_lr) * (1.0 + std::cos(std::numbers::pi * x));
    case config::LrSchedule::linear: return o.lr + (o.min_lr - o.lr) * x;
    case config::LrSchedule::constant: break;
  }
  return o.lr;
}

}  // namespace p3d::optim
