// SPDX-License-Identifier: Apache-2.0
#pragma once
// The linears of a layer as the launches of one rank: what room plan times GEMMs by.

#include <p3d/config/config.hpp>

#include <cstdint>
#include <vector>

namespace p3d::plan {

/// Linears of a layer on one rank that are one launch: `count` times [rows, k] x [k, n].
struct Linear {
  double n = 0, k = 0, rows = 0, count = 1;
  bool fp8 = true;          ///< in fp8 where the generation has it
  bool ends_layer = false;  ///< its result joins the residual stream last
};

/// All linears of a layer, for a microbatch of so many tokens on a rank.
std::vector<Linear> linears_of(config::Config const& config, std::int64_t layer, double tokens);

/// The products that make keys and values of the latents of other ranks of cp, where latents travel: one for each of
/// the other places of the ring. Each pass has them beside linears_of(), and backward makes them forward once more.
Linear expansions_of(config::Config const& config, double tokens);

}  // namespace p3d::plan
