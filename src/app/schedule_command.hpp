// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d schedule show|check|simulate|compare: the pipeline's schedule without running it.

namespace p3d::app {

/// `argv[0]` is the word "schedule". Returns the exit code. Needs neither MPI nor a device.
int schedule_command(int argc, char** argv);

}  // namespace p3d::app
