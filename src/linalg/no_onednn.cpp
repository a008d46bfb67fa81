// SPDX-License-Identifier: Apache-2.0
// Builds without oneDNN.

#include "gemm16.hpp"

namespace p3d::linalg::detail {

std::string onednn_method(Type16) { return ""; }
bool prepare_onednn(Gemm16 const&, int) { return false; }
void onednn_gemm(Gemm16 const&, int, float*) {}

}  // namespace p3d::linalg::detail
