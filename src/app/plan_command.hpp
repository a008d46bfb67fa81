// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d plan: the time of a step on a machine that need not be at hand, and how far such predictions are off.

namespace p3d::app {

/// Runs the command; `argv[0]` is "plan". Returns the exit code. Needs neither MPI nor a device.
int plan_command(int argc, char** argv);

}  // namespace p3d::app
