// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command p3d data tokenize: makes a Megatron IndexedDataset of text files.

namespace p3d::app {

/// Runs the command; `argv[0]` is "tokenize". Returns the exit code.
int tokenize_command(int argc, char** argv);

}  // namespace p3d::app
