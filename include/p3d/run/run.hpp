// SPDX-License-Identifier: Apache-2.0
#pragma once
// A whole training run: what is printed at the start, the step loop, validation, files, the summary.

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/schedule/timeline.hpp>

namespace p3d::run {

/// Trains as `config` says, on all ranks of `world`. Rank 0 prints (`verbose`: the complete input too) and writes
/// output_dir/resolved.toml and metrics.csv; the files of an earlier run are kept under new names. `draw` makes the
/// picture of run.trace. Returns ok,
/// interrupted or stopped_unsaved (a signal or the time limit), checkpoint_failed, or run_failed when rows of
/// metrics.csv are missing. Throws base::Error for everything else, so run it inside comm::leave_together. Collective.
base::ExitCode run(config::Config const& config, comm::Communicator& world, bool verbose = false,
                   schedule::DrawTimelines const& draw = {});

}  // namespace p3d::run
