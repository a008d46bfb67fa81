// SPDX-License-Identifier: Apache-2.0
#pragma once
// The end of a prediction, when the parts of a step are known: ranks that share a core, jitter, and the interval.

#include <p3d/plan/step_time.hpp>

namespace p3d::plan {

/// Completes a step. `uneven`: the seconds that the mean rank computes more than the one that sets the pace (less than
/// 0 where stages are uneven).
///
/// Where ranks share a core, what they compute takes Device::sharers times as long, and who waits leaves the core to
/// others. So the step is the longer one of two: that of ranks with a core each, and the work of all ranks over the
/// cores. The bubble takes what is between them; it is below 0 where the rank that sets the pace has more than its
/// share.
void finish(StepTime& time, config::Cluster const& cluster, int ranks, double uneven);

}  // namespace p3d::plan
