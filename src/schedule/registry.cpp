// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/base/schedule_names.hpp>
#include <p3d/base/text.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <fmt/format.h>

namespace p3d::schedule {

// P3D_GENERATORS is P3D_GENERATOR(x) for every file generators/x.cpp.
#define P3D_GENERATOR(x) extern Generator const generator_##x;
P3D_GENERATORS
#undef P3D_GENERATOR

std::span<Generator const* const> generators() {
#define P3D_GENERATOR(x) &generator_##x,
  static Generator const* const all[] = {P3D_GENERATORS};
#undef P3D_GENERATOR
  return all;
}

Generator const* find_generator(std::string_view name) {
  for (Generator const* generator : generators())
    if (generator->name == name || (!name.empty() && generator->alias == name)) return generator;
  return nullptr;
}

namespace {

using base::refuse;

}  // namespace

Program generate(std::string_view name, Shape const& asked) {
  Generator const* generator = find_generator(name);
  if (generator == nullptr) {
    std::vector<std::string> names;
    for (Generator const* known : generators()) names.emplace_back(known->name);
    std::string const near = base::nearest(name, names);
    refuse(fmt::format("a schedule: {}", base::join(names)), fmt::format("\"{}\"", name), "pipeline.schedule",
           near.empty() ? "choose one of them" : fmt::format("did you mean \"{}\"?", near));
  }
  Shape shape = asked;
  if (shape.stages_per_rank == 0) shape.stages_per_rank = generator->stages_per_rank;
  if (shape.stages_per_rank < 1 ||
      (shape.stages_per_rank != generator->stages_per_rank && !generator->any_stages_per_rank))
    refuse(generator->any_stages_per_rank
               ? std::string("at least 1 stage per rank")
               : fmt::format("{} per rank for {}", base::counted(generator->stages_per_rank, "stage"), name),
           fmt::format("{}", shape.stages_per_rank), "pipeline.virtual_stages",
           "remove pipeline.virtual_stages, or choose interleaved_1f1b or looped_bfs");
  if (shape.microbatch_group_size < 0 || (shape.microbatch_group_size > 0 && !generator->any_group_size))
    refuse("a group size only for a schedule that goes through the chunks in groups of microbatches",
           fmt::format("{} for {}", shape.microbatch_group_size, name), "pipeline.microbatch_group_size",
           "remove pipeline.microbatch_group_size, or choose interleaved_1f1b");
  if (shape.microbatch_group_size > 0 && shape.microbatch_group_size < shape.num_ranks)
    refuse(fmt::format("groups of at least {} microbatches, one for every pipeline rank", shape.num_ranks),
           fmt::format("{}", shape.microbatch_group_size), "pipeline.microbatch_group_size",
           "raise pipeline.microbatch_group_size, or remove it");
  int const smallest = generator->smallest_microbatches(shape.num_ranks);
  if (shape.num_microbatches < smallest)
    refuse(fmt::format("at least {} for {} on {}", base::counted(smallest, "microbatch"), name,
                       base::counted(shape.num_ranks, "pipeline rank")),
           fmt::format("{}", shape.num_microbatches), "batch.microbatches",
           "raise the global batch, lower batch.micro, or choose another schedule");
  auto const forwards = std::int64_t{shape.num_ranks} * shape.stages_per_rank * shape.num_microbatches;
  if (shape.stages_per_rank > most_forwards || forwards > most_forwards)
    refuse(fmt::format("a program of at most {} forwards (pipeline ranks x stages per rank x microbatches)",
                       most_forwards),
           fmt::format("{} x {} x {}", shape.num_ranks, shape.stages_per_rank, shape.num_microbatches),
           "parallel.pp, pipeline.virtual_stages, batch.microbatches",
           "lower one of them; a larger batch.micro makes fewer microbatches of the same batch");
  return generator->make(shape);
}

}  // namespace p3d::schedule
