// SPDX-License-Identifier: Apache-2.0
#pragma once
// A summary with something in every member.

#include <p3d/plan/run_summary.hpp>

namespace p3d::test {

inline plan::RunSummary example_summary() {
  using plan::RunState;
  plan::RunSummary s;
  s.run = "a \"name\" <b>";
  s.steps = 100;
  s.exit_code = 75;
  s.reason = "two\nlines";
  s.starts = {{"2026-01-01T00:00:00Z", 0, 40, 12.5, 8, RunState::stopped},
              {"2026-01-02T00:00:00Z", 40, 60, 7.0, 4, RunState::failed}};
  s.layout = "dp 4";
  s.parameters = std::int64_t{1} << 50;
  s.tokens_per_step = 4096;
  s.model_flops_per_step = 2e12;
  s.recomputed_flops_per_step = 5e11;
  s.ceiling_flops = 1e12;
  s.median_step_s = 1.0;
  s.memory_of_ranks = {{.params = 1, .grads = 2, .optimizer = 3, .activations = 4, .workspace = 5}, {.offloaded = 6}};
  s.memory_predicted = 1e9;
  s.bottleneck = "checkpoints, 31.2 % of the time";
  s.phases = {{"forward", 1.0, 2.0, 3.0}};
  return s;
}

}  // namespace p3d::test
