// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of the activation function of a model's MLPs and experts.

#include <p3d/base/error.hpp>
#include <p3d/kernels/xielu.hpp>
#include <p3d/model/activation.hpp>

namespace p3d::model {

/// y = the activation function of x + bias; with a gate x is (gate | up), twice as wide. `slopes` are those of xIELU.
template <class S>
void activation_forward(ActivationFunction const& f, ExecSpace const& exec, View2<S const> x, View2<S> y,
                        View1<S const> bias = {}, View1<S const> slopes = {}) {
  switch (f.kind) {
    case config::Activation::gelu: return kernels::gelu_forward<S>(exec, x, y, bias);
    case config::Activation::swiglu: return kernels::swiglu_forward<S>(exec, x, y, bias);
    case config::Activation::geglu: return kernels::geglu_forward<S>(exec, x, y, bias);
    case config::Activation::swiglu_clamped: return kernels::swiglu_clamped_forward<S>(exec, f.bounds, x, y, bias);
    case config::Activation::xielu: return kernels::xielu_forward<S>(exec, x, slopes, y, bias);
  }
}

/// dx = the gradient of x + bias, for that of y. xIELU, which experts do not have, needs places for the gradients of
/// its slopes, too: kernels::xielu_backward.
template <class S>
void activation_backward(ActivationFunction const& f, ExecSpace const& exec, View2<S const> x, View2<S const> dy,
                         View2<S> dx, View1<S const> bias = {}) {
  switch (f.kind) {
    case config::Activation::gelu: return kernels::gelu_backward<S>(exec, x, dy, dx, bias);
    case config::Activation::swiglu: return kernels::swiglu_backward<S>(exec, x, dy, dx, bias);
    case config::Activation::geglu: return kernels::geglu_backward<S>(exec, x, dy, dx, bias);
    case config::Activation::swiglu_clamped:
      return kernels::swiglu_clamped_backward<S>(exec, f.bounds, x, dy, dx, bias);
    case config::Activation::xielu: P3D_REQUIRE(false, "experts have no xIELU");
  }
}

}  // namespace p3d::model
