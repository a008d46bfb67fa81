// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d checkpoint ls|show|verify|diff|prune: one process, no MPI, no Kokkos.

namespace p3d::app {

/// `argv[0]` is "checkpoint". Returns the exit code: 0; 1 for a damaged file or for files that differ; 2 for a wrong
/// line.
int checkpoint_command(int argc, char** argv);

}  // namespace p3d::app
