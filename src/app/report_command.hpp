// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d report: runs as one page of HTML.

namespace p3d::app {

/// Runs the command; `argv[0]` is "report". Returns the exit code. Needs neither MPI nor a device.
int report_command(int argc, char** argv);

}  // namespace p3d::app
