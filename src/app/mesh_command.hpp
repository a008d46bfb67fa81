// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d mesh: coordinates, groups and neighbours of the ranks of a layout, without running it.

namespace p3d::app {

/// Runs the command; `argv[0]` is "mesh". Returns the exit code. Needs neither MPI nor a device.
int mesh_command(int argc, char** argv);

}  // namespace p3d::app
