// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which activations to recompute so that a rank's memory fits a budget, at the least cost: memory.recompute = "auto".

#include <p3d/config/config.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/plan/model_cost.hpp>

#include <cstdint>
#include <functional>
#include <optional>

namespace p3d::plan {

/// What may be chosen for the stages of a rank: the first `full_layers` layers of each are recomputed whole, of the
/// others the outputs of some operations.
struct RecomputeChoice {
  config::RecomputedOps ops;
  int full_layers = 0;
  bool operator==(RecomputeChoice const&) const = default;
};

/// The choice for a stage. Where layout::refine() has cut stages, full_layers count within the uncut one.
layout::StageRecompute stage_recompute(RecomputeChoice const& choice, layout::StageMap const& stages, int stage);

/// What remaking costs a backward pass of a stage: operations per token as recompute_flops_per_token counts them, and
/// those that a GEMM does in the time of a norm or an activation function, which memory limits (measured on a CPU core
/// with AVX-512: 50 for an element of a norm, 70 for one of an activation function).
double recompute_cost_per_token(config::Config const& config, layout::StageRecompute const& stage,
                                std::int64_t first_layer, Keys keys);

/// Of all choices whose bytes are at most `budget` the one with the least cost; of equals the one with fewer bytes.
/// Nothing: none fits. `most_layers`: of the rank's stages. Both functions are asked for some 8 log2(most_layers)
/// choices: the cost must grow with full_layers, and from 1 on the bytes must not.
std::optional<RecomputeChoice> choose_recompute(int most_layers, std::int64_t budget,
                                                std::function<std::int64_t(RecomputeChoice const&)> const& bytes,
                                                std::function<double(RecomputeChoice const&)> const& cost);

}  // namespace p3d::plan
