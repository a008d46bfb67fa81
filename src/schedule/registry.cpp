#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/schedule/registry.hpp>

#include <fmt/format.h>

namespace p3d::schedule {

// One line per schedule: the variable generator_<x> of generators/<x>.cpp, in the order of the documentation.
#define P3D_GENERATORS(line) \
  line(gpipe)                \
  line(one_f_one_b)

#define P3D_DECLARE(x) extern Generator const generator_##x;
P3D_GENERATORS(P3D_DECLARE)
#undef P3D_DECLARE

std::span<Generator const* const> generators() {
#define P3D_ADDRESS(x) &generator_##x,
  static Generator const* const all[] = {P3D_GENERATORS(P3D_ADDRESS)};
#undef P3D_ADDRESS
  return all;
}

Generator const* find_generator(std::string_view name) {
  for (Generator const* generator : generators())
    if (generator->name == name) return generator;
  return nullptr;
}

Program generate(std::string_view name, Shape const& shape) {
  Generator const* generator = find_generator(name);
  if (generator == nullptr) {
    std::vector<std::string> names;
    for (Generator const* known : generators()) names.emplace_back(known->name);
    std::string const near = base::nearest(name, names);
    throw base::Error({.expected = fmt::format("a schedule: {}", base::join(names)),
                       .found = fmt::format("\"{}\"", name),
                       .where = "pipeline.schedule",
                       .fix = near.empty() ? "choose one of them" : fmt::format("did you mean \"{}\"?", near)},
                      base::ExitCode::bad_input);
  }
  int const smallest = generator->smallest_microbatches(shape.num_ranks);
  if (shape.num_microbatches < smallest)
    throw base::Error({.expected = fmt::format("at least {} microbatches for {} on {} pipeline ranks", smallest, name,
                                               shape.num_ranks),
                       .found = fmt::format("{}", shape.num_microbatches),
                       .where = "batch.microbatches",
                       .fix = "raise the global batch, lower batch.micro, or choose another schedule"},
                      base::ExitCode::bad_input);
  return generator->make(shape);
}

}  // namespace p3d::schedule
