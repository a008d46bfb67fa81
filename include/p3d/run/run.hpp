// SPDX-License-Identifier: Apache-2.0
#pragma once
// A whole training run: what is printed at the start, the step loop, evaluation, files, the summary.

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

namespace p3d::run {

/// Trains as `config` says, on all ranks of `world`. Rank 0 prints (`verbose`: the complete input too) and writes
/// output_dir/resolved.toml and metrics.csv (the files of an earlier run are kept under new names). Returns ok,
/// interrupted or stopped_unsaved (a signal or the time limit) or checkpoint_failed; throws base::Error for the rest:
/// run it inside comm::leave_together. Collective.
base::ExitCode run(config::Config const& config, comm::Communicator& world, bool verbose = false);

}  // namespace p3d::run
