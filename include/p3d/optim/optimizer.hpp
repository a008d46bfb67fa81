// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizer of one stage on one rank: moments in flat buffers beside the parameters.

#include <p3d/config/config.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/params.hpp>

#include <cstdint>

namespace p3d::optim {

using device::ExecSpace;
using device::View1;

/// P: a policy of device/precision.hpp.
template <class P>
class Optimizer {
public:
  using Master = typename P::Master;
  using Moment = typename P::Moment;
  using Gradient = typename P::Gradient;

  /// `params` must outlive the optimizer. AdamW allocates two moments per element, SGD none.
  Optimizer(config::Optimizer const& options, layout::StageParams const& params);

  /// One update of all master weights. `step` counts from 1 (bias correction); gradients are multiplied by `grad_scale`
  /// (clipping) on the way, and are zero afterwards unless `keep_gradients`. Weight decay applies to the parameters
  /// whose table row says so.
  void apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, View1<Master> master,
             View1<Gradient> grads, bool keep_gradients = false);

  /// First and second moments, empty for SGD.
  View1<Moment> first_moment() const { return m_; }
  View1<Moment> second_moment() const { return v_; }

private:
  config::Optimizer options_;
  layout::StageParams const* params_;
  device::Owned1<Moment> m_;
  device::Owned1<Moment> v_;
};

/// Factor on the gradients that brings their global norm down to `clip` (1 when it is below, or clip is 0).
double clip_factor(double global_norm, double clip);

}  // namespace p3d::optim
