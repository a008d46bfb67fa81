// SPDX-License-Identifier: Apache-2.0
#pragma once
// The constants of the activation function xIELU (kernels/xielu.hpp). Kernels compute with them, the first values of
// its slopes follow from them, and files of models store them.

namespace p3d::base {

inline constexpr double xielu_beta = 0.5, xielu_eps = -1e-6;

}  // namespace p3d::base
