// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands p3d generate and p3d eval: they use a trained model, on any layout.

namespace p3d::app {

/// Continues texts; `argv[0]` is "generate". It starts with or without a launcher.
int generate_command(int argc, char** argv);
/// Computes the loss of a text or of the validation split; `argv[0]` is "eval". It starts with or without a launcher.
int eval_command(int argc, char** argv);

}  // namespace p3d::app
