// SPDX-License-Identifier: Apache-2.0
#pragma once
// From run.precision and precision.gradients to a policy: the one place where the input chooses types.

#include <p3d/config/config.hpp>
#include <p3d/device/precision.hpp>

namespace p3d::engine {

/// Calls work(policy) with an object of the policy; what it is for is its type.
template <class Work>
decltype(auto) with_policy(config::Config const& config, Work&& work) {
  switch (config.run.precision) {
    case config::Precision::fp64: return work(device::Fp64{});
#if P3D_16BIT
    case config::Precision::bf16:
      if (config.precision.gradients == config::Precision::bf16) return work(device::Bf16Gradients{});
      return work(device::Bf16{});
    case config::Precision::fp16: return work(device::Fp16{});
#endif
    default: break;  // fp32; what the build has not is refused with the input
  }
  return work(device::Fp32{});
}

}  // namespace p3d::engine
