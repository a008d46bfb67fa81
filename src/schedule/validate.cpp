// SPDX-License-Identifier: Apache-2.0
#include "validator.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace p3d::schedule {

std::vector<Violation> validate(Program const& program, Execution execution, Pass pass) {
  P3D_REQUIRE(execution.sends_in_flight >= 0, "the number of outstanding sends is not negative");
  auto found = check_structure(program, pass);
  if (found.empty()) found = check_weights(program, pass);
  if (found.empty()) found = check_order(program, pass);
  return found.empty() ? check_progress(program, execution, pass) : found;
}

void require_valid(Program const& program, Execution execution, Pass pass) {
  auto const found = validate(program, execution, pass);
  if (found.empty()) return;
  auto const describe = [&](Violation const& v) {
    if (v.rank < 0) return v.message;
    auto const& actions = program.ranks[static_cast<std::size_t>(v.rank)];
    if (v.index < 0) return fmt::format("rank {}: {}", v.rank, v.message);
    return fmt::format("rank {}, action {} ({}): {}", v.rank, v.index,
                       to_string(actions[static_cast<std::size_t>(v.index)]), v.message);
  };
  constexpr std::size_t listed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), listed); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : "\n          ", describe(found[i]));
  if (found.size() > listed) text += fmt::format("\n          and {} more", found.size() - listed);
  // The table needs sound sizes; where those are wrong there is no cell to mark.
  if (found.front().rank >= 0)
    text += fmt::format("\n{}", to_table(program, found.front().rank, found.front().index, 16, 16));
  base::refuse(
      {.expected = fmt::format(
           "a pipeline schedule that runs to its end ({} sends, {} in flight)",
           execution.rendezvous ? "rendezvous" : "eager",
           execution.sends_in_flight > 1000 ? std::string("any number") : std::to_string(execution.sends_in_flight)),
       .found = text,
       .where =
           fmt::format("schedule of {} on {}, {}", base::counted(program.num_stages, "stage"),
                       base::counted(program.num_ranks, "rank"), base::counted(program.num_microbatches, "microbatch")),
       .fix = "correct the marked action; a schedule that p3d generated itself should never fail: please report it"});
}

namespace {
std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return number++;
}
}  // namespace

ValidProgram::ValidProgram(Program program, Execution execution, Pass pass)
    : program_(std::move(program)), execution_(execution), pass_(pass), number_(next_number()) {
  require_valid(program_, execution_, pass_);
  if (execution_.p2p != P2p::ring) return;
  std::string why;
  auto rounds = find_rounds(program_, execution_, pass_, why);
  if (!rounds)
    base::refuse(
        {.expected = "a schedule whose messages go between neighbours on the ring of pipeline ranks (p2p = \"ring\")",
         .found = why,
         .where = "pipeline.p2p",
         .fix = "set pipeline.p2p to \"batched\" or \"separate\", or pipeline.schedule to one that p3d makes, \"1f1b\" "
                "for "
                "example: their stages follow each other on neighbours"});
  rounds_ = std::move(*rounds);
}

}  // namespace p3d::schedule
