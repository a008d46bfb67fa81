// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d schedule show|check|simulate|compare: the pipeline's schedule without running it.

namespace p3d::app {

/// Runs the command; `argv[0]` is "schedule". Returns the exit code. Needs neither MPI nor a device.
int schedule_command(int argc, char** argv);

}  // namespace p3d::app
