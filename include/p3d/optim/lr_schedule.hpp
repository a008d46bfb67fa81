// SPDX-License-Identifier: Apache-2.0
#pragma once
// Learning-rate schedules: pure functions of the step.

#include <p3d/config/config.hpp>

#include <cstdint>

namespace p3d::optim {

/// The learning rate of step t (from 0) of `steps`. During warm-up it is lr (t + 1) / warmup_steps. After the warm-up,
/// with x = (t - warmup_steps) / max(1, steps - 1 - warmup_steps), so that the last step has min_lr:
///   cosine min_lr + (lr - min_lr) (1 + cos(pi x)) / 2 (Loshchilov, Hutter, arXiv 1608.03983, eq. 5, without restarts);
///   linear lr + (min_lr - lr) x;  constant lr.
double learning_rate(config::Optimizer const& optimizer, std::int64_t step, std::int64_t steps);

}  // namespace p3d::optim
