// SPDX-License-Identifier: Apache-2.0
#pragma once
// The start-up text.

#include <p3d/config/config.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/layout/context.hpp>

#include <string>

namespace p3d::report {

/// The text of `p3d --check` and of the start of a run: mesh with its groups, layers by stage, parameters, FLOPs per
/// token, windows, what cp and sequence parallelism send, recomputation, memory by pipeline rank.
/// Of a large bubble it tells the cause and what would help, or, unless it `explains`, that --check does.
std::string describe(config::Config const& config, engine::RunPlan const& plan, bool explains = true);

/// Bytes of all ranks together: as predicted, and of their processes, before the run took any and now. Up to 100 MiB a
/// rank above the prediction are named as those of MPI and BLAS; beyond, and below the prediction, the ratio is told.
std::string grade_memory(double predicted, double before, double now, int ranks);

/// "  tp groups (4 of 2): [0 1] [2 3] [4 5] [6 7]" with its line's end; of many groups and ranks the first and the
/// last.
std::string groups_line(layout::RankGrid const& grid, layout::Axis axis);

/// What attention waits for other ranks of cp (layout::context_wait), in the mean over the layers, beside its own work;
/// with its line's end. Empty for cp = 1.
std::string context_wait_line(config::Config const& config, layout::MachineRates const& rates);

}  // namespace p3d::report
