#pragma once
// What generators share.

#include <p3d/base/error.hpp>
#include <p3d/schedule/registry.hpp>

#include <numeric>

namespace p3d::schedule {

/// A program without actions, stage s on rank s.
inline Program one_stage_per_rank(Shape const& shape) {
  P3D_REQUIRE(shape.num_ranks >= 1, "a pipeline has at least one rank");
  P3D_REQUIRE(shape.num_microbatches >= 1, "a step has at least one microbatch");
  Program program;
  program.num_stages = program.num_ranks = shape.num_ranks;
  program.num_microbatches = shape.num_microbatches;
  program.stage_rank.resize(static_cast<std::size_t>(shape.num_ranks));
  std::iota(program.stage_rank.begin(), program.stage_rank.end(), 0);
  program.ranks.resize(static_cast<std::size_t>(shape.num_ranks));
  return program;
}

}  // namespace p3d::schedule
