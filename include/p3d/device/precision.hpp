// SPDX-License-Identifier: Apache-2.0
#pragma once
// Precision policies: each names the six types of numbers that training has (Micikevicius et al., arXiv 1710.03740, for
// the mixed ones). run.precision chooses one of them.
//
//   type        what is kept in it
//   Storage     weights as layers read them, activations and their gradients
//   Gradient    gradients of weights, added up over microbatches and reduced over ranks
//   Master      weights as the optimizer updates them and as checkpoints hold them
//   Moment      moments of the optimizer
//   Accumulate  sums inside kernels, statistics of norms and softmax, the loss
//   Wire        activations and their gradients between ranks

#include <p3d/base/precisions.hpp>
#include <p3d/device/float16.hpp>

#include <type_traits>

namespace p3d::device {

/// The type of sums and arithmetic on elements of type S.
template <class S>
using accumulate_t = std::conditional_t<sizeof(S) == 2, float, S>;

/// A policy with Storage S and one wide type for all else.
template <class S, class Wide>
struct PrecisionPolicy {
  using Storage = S;
  using Gradient = Wide;
  using Master = Wide;
  using Moment = Wide;
  using Accumulate = Wide;
  using Wire = S;
  /// True when the optimizer keeps master weights beside the weights that layers read.
  static constexpr bool has_master = !std::is_same_v<Storage, Master>;
};

struct Fp64 : PrecisionPolicy<double, double> {};
struct Fp32 : PrecisionPolicy<float, float> {};
struct Bf16 : PrecisionPolicy<bfloat16, float> {};
struct Fp16 : PrecisionPolicy<float16, float> {};
/// Policy of precision.gradients = "bf16": gradients of weights are added up in 16 bits too.
struct Bf16Gradients : Bf16 {
  using Gradient = bfloat16;
};

/// Lists for explicit instantiations. P3D_POLICIES(X) calls X(P) for every policy of this build, P3D_STORAGE_TYPES(X)
/// calls X(S) for every storage type, P3D_GRADIENT_TYPES(X) calls X(G) for every type of gradients.
#if P3D_16BIT
#define P3D_POLICIES(X)  \
  X(::p3d::device::Fp32) \
  X(::p3d::device::Fp64) X(::p3d::device::Bf16) X(::p3d::device::Fp16) X(::p3d::device::Bf16Gradients)
#define P3D_STORAGE_TYPES(X) X(float) X(double) X(::p3d::device::bfloat16) X(::p3d::device::float16)
#define P3D_GRADIENT_TYPES(X) X(float) X(double) X(::p3d::device::bfloat16)
#else
#define P3D_POLICIES(X) X(::p3d::device::Fp32) X(::p3d::device::Fp64)
#define P3D_STORAGE_TYPES(X) X(float) X(double)
#define P3D_GRADIENT_TYPES(X) P3D_STORAGE_TYPES(X)
#endif

}  // namespace p3d::device
