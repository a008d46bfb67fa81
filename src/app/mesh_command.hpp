// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d mesh: who is who among the ranks of a layout, without running it.

namespace p3d::app {

/// `argv[0]` is the word "mesh". Returns the exit code. Needs neither MPI nor a device.
int mesh_command(int argc, char** argv);

}  // namespace p3d::app
