// SPDX-License-Identifier: Apache-2.0
#pragma once
// The activation function of a model's MLPs and experts.

#include <p3d/config/config.hpp>
#include <p3d/kernels/elementwise.hpp>

namespace p3d::model {

/// model.activation with its numbers.
struct ActivationFunction {
  explicit ActivationFunction(config::Model const& model)
      : kind(model.activation), bounds{model.swiglu_alpha, model.swiglu_limit} {}
  config::Activation kind;
  kernels::SwigluBounds bounds;  ///< numbers of swiglu_clamped
};

}  // namespace p3d::model
