// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d data tokenize: text files to a Megatron IndexedDataset.

namespace p3d::app {

/// argv[0] is "tokenize".
int tokenize_command(int argc, char** argv);

}  // namespace p3d::app
