// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d tokenizer show|encode|decode|train.

namespace p3d::app {

/// Runs the command; `argv[0]` is "tokenizer". Returns the exit code.
int tokenizer_command(int argc, char** argv);

}  // namespace p3d::app
