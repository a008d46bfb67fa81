// SPDX-License-Identifier: Apache-2.0
#pragma once
// Schedule generators by name, as the input file names them (pipeline.schedule).

#include <p3d/schedule/action.hpp>

#include <span>
#include <string_view>

namespace p3d::schedule {

/// The sizes that a generator is asked for.
struct Shape {
  int num_ranks = 1;              ///< pipeline ranks
  int num_microbatches = 1;       ///< per step and data-parallel replica
  int stages_per_rank = 1;        ///< chunks, virtual stages; for generate(): 0 is the schedule's own number
  int microbatch_group_size = 0;  ///< for interleaving, at least num_ranks; 0: num_ranks
};

/// One schedule: a file of its own, src/schedule/generators/<name>.cpp, that defines generator_<name>. The build finds
/// it there, for the registry and for the names that the input may use; nothing else names it.
struct Generator {
  std::string_view name;        ///< as in the input file
  std::string_view alias = {};  ///< another name for it
  std::string_view help = {};   ///< one line: what it does and what it costs (f, i, w: times of the parts of a stage)
  int stages_per_rank = 1;      ///< unless asked for another number
  bool any_stages_per_rank = false;  ///< may be asked for another number
  bool any_group_size = false;       ///< uses microbatch_group_size
  /// Fewer than this cannot be scheduled on so many ranks.
  int (*smallest_microbatches)(int num_ranks) = [](int) { return 1; };
  Program (*make)(Shape const& shape) = nullptr;  ///< compute actions only; call complete() on it
};

/// All generators, by name.
std::span<Generator const* const> generators();
/// The generator of that name or alias, or nullptr.
Generator const* find_generator(std::string_view name);
/// The compute actions of a named schedule. Throws base::Error (bad_input) for an unknown name (with the nearest known
/// one), for a number of stages per rank or a group size that the schedule does not take, and for too few microbatches
/// (with the smallest number that works).
Program generate(std::string_view name, Shape const& shape);

}  // namespace p3d::schedule
