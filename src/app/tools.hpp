// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands beside training.

#include <optional>

namespace p3d::app {

/// Runs the command that argv[1] names (checkpoint, generate, eval, report) and returns its exit code; nothing when it
/// names none.
std::optional<int> run_tool(int argc, char** argv);

}  // namespace p3d::app
