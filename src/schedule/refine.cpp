// SPDX-License-Identifier: Apache-2.0
// Finer stages.

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

namespace p3d::schedule {

Program refine(Program const& compute, std::vector<int> const& parts) {
  require_in_range(compute);
  P3D_REQUIRE(parts.size() == static_cast<std::size_t>(compute.num_stages), "every stage has a number of parts");
  Program out;
  out.num_ranks = compute.num_ranks;
  out.num_microbatches = compute.num_microbatches;
  out.divides_vocabulary = compute.divides_vocabulary;
  P3D_REQUIRE(!compute.tied, "stages are cut once");
  std::vector<int> first;  // by stage
  for (std::size_t s = 0; s < parts.size(); ++s) {
    P3D_REQUIRE(parts[s] >= 1, "a stage has at least one part");
    first.push_back(static_cast<int>(out.stage_rank.size()));
    out.stage_rank.insert(out.stage_rank.end(), static_cast<std::size_t>(parts[s]), compute.stage_rank[s]);
  }
  out.num_stages = static_cast<int>(out.stage_rank.size());
  out.ranks.resize(compute.ranks.size());
  for (std::size_t r = 0; r < compute.ranks.size(); ++r)
    for (Action const& a : compute.ranks[r]) {
      auto const s = static_cast<std::size_t>(a.stage);
      if (is_vocabulary(a.op)) {  // they name the rank's first stage, and have their slots
        out.ranks[r].push_back(a);
        out.ranks[r].back().stage = first[s];
        continue;
      }
      P3D_REQUIRE(is_compute(a.op), "stages are cut before messages and reductions are added");
      for (int i = 0; i < parts[s]; ++i) {
        int const part = a.op == Op::forward ? i : parts[s] - 1 - i;
        out.ranks[r].push_back({a.op, first[s] + part, a.microbatch});
      }
    }
  return out;
}

}  // namespace p3d::schedule
