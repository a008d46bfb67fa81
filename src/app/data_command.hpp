// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace p3d::app {

/// Runs `p3d data show|head|check|stats`, which inspects files of tokens; `argv[0]` is "data". Returns the exit code: 2
/// for a file that is not what it says.
int data_command(int argc, char** argv);

}  // namespace p3d::app
