// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses the activations to recompute so that a rank's memory fits a budget, at the least cost: memory.recompute =
// "auto".

#include <p3d/config/config.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/plan/model_cost.hpp>

#include <cstdint>
#include <functional>
#include <optional>

namespace p3d::plan {

/// A choice for the stages of a rank: the first `full_layers` layers of each are recomputed whole, and the others only
/// the outputs of the operations `ops`.
struct RecomputeChoice {
  config::RecomputedOps ops;
  int full_layers = 0;
  bool operator==(RecomputeChoice const&) const = default;
};

/// The choice as a plan for the layers of one stage. Where layout::refine() has cut stages, full_layers count within
/// the uncut one.
layout::StageRecompute stage_recompute(RecomputeChoice const& choice, layout::StageMap const& stages, int stage);

/// Operations per token that recomputation adds to a backward of a stage: those that recompute_flops_per_token counts,
/// and those that a GEMM does in the time of a norm or an activation function, which memory limits (measured on a CPU
/// core with AVX-512: 50 for an element of a norm, 70 for one of an activation function).
double recompute_cost_per_token(config::Config const& config, layout::StageRecompute const& stage,
                                std::int64_t first_layer, Keys keys);

/// Returns the cheapest choice whose bytes are at most `budget`, among equally cheap ones the one with fewer bytes, or
/// nothing when none fits. `most_layers`: layers of the rank's longest stage. Both functions are asked for some
/// 8 log2(most_layers) choices, so the cost must grow with full_layers, and from 1 on the bytes must not.
std::optional<RecomputeChoice> choose_recompute(int most_layers, std::int64_t budget,
                                                std::function<std::int64_t(RecomputeChoice const&)> const& bytes,
                                                std::function<double(RecomputeChoice const&)> const& cost);

}  // namespace p3d::plan
