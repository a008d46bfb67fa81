#pragma once
// Schedule generators by name, as the input file names them (pipeline.schedule).

#include <p3d/schedule/action.hpp>

#include <span>
#include <string_view>

namespace p3d::schedule {

/// What a generator is asked for.
struct Shape {
  int num_ranks = 1;         ///< pipeline ranks
  int num_microbatches = 1;  ///< per step and data-parallel replica
};

/// One schedule. Each lives in a file of its own under src/schedule/generators.
struct Generator {
  std::string_view name;                     ///< as in the input file
  std::string_view help;                     ///< one line: what it does and what it costs
  int (*smallest_microbatches)(int num_ranks);  ///< fewer than this cannot be scheduled on so many ranks
  Program (*make)(Shape const& shape);       ///< compute actions only; call complete() on it
};

/// All generators, in the order of the documentation.
std::span<Generator const* const> generators();
/// The generator of that name, or nullptr.
Generator const* find_generator(std::string_view name);
/// The compute actions of a named schedule. Throws base::Error (bad_input) for an unknown name (with the nearest known
/// one) and for too few microbatches (with the smallest number that works).
Program generate(std::string_view name, Shape const& shape);

}  // namespace p3d::schedule
