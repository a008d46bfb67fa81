// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d generate and p3d eval: a trained model at work, on any layout.

namespace p3d::app {

/// `argv[0]` is "generate" or "eval". Start with or without a launcher.
int generate_command(int argc, char** argv);
int eval_command(int argc, char** argv);

}  // namespace p3d::app
