// SPDX-License-Identifier: Apache-2.0
#include "plan/step_finish.hpp"

#include <algorithm>
#include <cmath>

namespace p3d::plan {
namespace {

using P = TimePart;

void share_cores(StepTime& time, double sharers, double uneven) {
  if (sharers <= 1) return;
  double const alone = time.seconds();
  for (auto part :
       {P::gemm_forward, P::gemm_input, P::gemm_weight, P::attention, P::memory, P::launches, P::head, P::optimizer})
    time[part] *= sharers;
  time[P::bubble] = 0;
  double const pace = time.seconds();
  time[P::bubble] = std::max(alone, pace + sharers * uneven) - pace;
}

}  // namespace

void finish(StepTime& time, config::Cluster const& cluster, int ranks, double uneven) {
  share_cores(time, cluster.device.sharers, uneven);
  time[P::jitter] = time.seconds() * cluster.jitter * std::sqrt(2 * std::log(std::max(ranks, 2)));
  double const bound = std::min(1.0, 4 * time[P::launches] / time.seconds());
  time.low = time.seconds() * (1 - std::hypot(0.10, 0.12 * bound));
  time.high = time.seconds() * (1 + std::hypot(0.18, 0.12 * bound));
}

}  // namespace p3d::plan
