// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d checkpoint ls|show|verify|diff|prune. It needs one process, no MPI and no Kokkos.

namespace p3d::app {

/// Runs the command; `argv[0]` is "checkpoint". Returns the exit code: 0; 1 for a damaged file or for files that
/// differ; 2 for a wrong command line.
int checkpoint_command(int argc, char** argv);

}  // namespace p3d::app
