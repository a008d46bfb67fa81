// SPDX-License-Identifier: Apache-2.0
#pragma once
// The start-up text of a run and of `p3d --check`.

#include <p3d/config/config.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/layout/context.hpp>

#include <string>

namespace p3d::report {

/// The start-up text: mesh with its groups, layers by stage, parameters, FLOPs per token, windows, traffic of context
/// and sequence parallelism, recomputation, memory by pipeline rank. For a large bubble it tells the cause and the keys
/// that would help; without `explains` it says that --check tells them.
std::string describe(config::Config const& config, engine::RunPlan const& plan, bool explains = true);

/// Grades the prediction of memory. All numbers are bytes of all ranks: predicted, and in use by their processes before
/// the run took any and now. Up to 100 MiB a rank above the prediction are explained as those of MPI and BLAS; beyond
/// that, and below the prediction, the ratio is told.
std::string grade_memory(double predicted, double before, double now, int ranks);

/// A line with the groups of an axis, such as "  tp groups (4 of 2): [0 1] [2 3] [4 5] [6 7]", and its line end. Of
/// many groups or ranks it shows the first and the last.
std::string groups_line(layout::RankGrid const& grid, layout::Axis axis);

/// A line about the time that attention waits for other ranks of cp (layout::context_wait), in the mean over the
/// layers, beside its own work, with its line end. Empty for cp = 1.
std::string context_wait_line(config::Config const& config, layout::MachineRates const& rates);

}  // namespace p3d::report
