// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice of a command beside training.

#include <optional>

namespace p3d::app {

/// Runs the command that argv[1] names (checkpoint, data, generate, eval, report, import, export, tokenizer) and
/// returns its exit code; nothing when it names none of them.
std::optional<int> run_tool(int argc, char** argv);

}  // namespace p3d::app
