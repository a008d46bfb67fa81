// SPDX-License-Identifier: Apache-2.0
#pragma once
// `p3d import` and `p3d export`: models in Hugging Face form.

namespace p3d::app {

int import_command(int argc, char** argv);
int export_command(int argc, char** argv);

}  // namespace p3d::app
