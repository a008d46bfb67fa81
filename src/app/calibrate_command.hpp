// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d plan calibrate: measures this machine and writes its cluster file.

namespace p3d::app {

/// Runs `p3d plan calibrate`; argv[0] is "calibrate". Collective over the launcher's ranks. Returns the exit code.
int calibrate_command(int argc, char** argv);

}  // namespace p3d::app
