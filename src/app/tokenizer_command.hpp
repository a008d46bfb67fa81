// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d tokenizer show | encode | decode | train.

namespace p3d::app {

int tokenizer_command(int argc, char** argv);

}  // namespace p3d::app
