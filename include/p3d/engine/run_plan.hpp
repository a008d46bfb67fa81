// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plan of a run (plan/run_plan.hpp) on what this build computes on.

#include <p3d/config/config.hpp>
#include <p3d/layout/communicators.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/run_plan.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <cstdint>

namespace p3d::engine {

using plan::execution;
using plan::require_supported;
using plan::RunPlan;
using plan::workspaces_of;

/// The platform of this build. `p3d --check` plans before Kokkos knows its threads: then it has one.
plan::Platform platform();

/// plan::make_run_plan on platform().
RunPlan make_run_plan(config::Config const& config);
RunPlan make_run_plan(config::Config const& config, layout::StageMap stages, schedule::ValidProgram training);

/// Microbatches of one rank and step, and the global number of the first sample of one of them. Samples of a global
/// batch are dealt to dp coordinates in contiguous blocks, each cut into microbatches.
std::int64_t first_sample(config::Config const& config, std::int64_t step, int dp, int microbatch);

}  // namespace p3d::engine
