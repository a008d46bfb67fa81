// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seconds of a layer on one rank, for one microbatch.

namespace p3d::plan {

/// Seconds of one pass of a layer by part. Launches hide behind work in part.
struct Pass {
  double gemm_input = 0, gemm_weight = 0;  ///< GEMMs of backward; forward has its own in gemm_input
  double attention = 0, memory = 0, tensor = 0, context = 0, experts = 0, launches = 0;
  double work() const { return gemm_input + gemm_weight + attention + memory + tensor + context + experts; }
  double whole() const { return work() + launches; }
};

/// Times and sizes of a layer on one rank, for a microbatch, that do not depend on recomputation and sharding.
struct LayerPasses {
  Pass forward, backward;
  double last = 0;        ///< seconds of forward's linears that end the layer
  double last_sum = 0;    ///< seconds of the sum over tp behind them
  double parameters = 0;  ///< of a rank, without those of experts
  double expert_parameters = 0;
};

/// Times of a layer on one rank with what recomputation, sharding and the number of microbatches add.
struct LayerTime : LayerPasses {
  Pass remade;            ///< the part of forward that backward makes again
  double accumulate = 0;  ///< seconds in which a microbatch's gradients are added to those before it
  double gathers = 0;     ///< seconds that forward and backward wait for divided weights and gradients
  double seconds() const { return forward.whole() + backward.whole() + remade.whole() + accumulate + gathers; }
};

}  // namespace p3d::plan
