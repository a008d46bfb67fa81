// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d report: runs as one page of HTML.

namespace p3d::app {

/// `argv[0]` is the word "report". Returns the exit code. Needs neither MPI nor a device.
int report_command(int argc, char** argv);

}  // namespace p3d::app
