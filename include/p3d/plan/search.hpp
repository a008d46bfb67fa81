// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layouts of a model on a machine, best first.
//
// Every layout that the sizes allow is predicted (step_time.hpp); those that are predicted best are then checked as a
// run would check them: the rules of the input, the memory of every rank. Example: a model of 8 B parameters on 64
// ranks has some ten thousand layouts, and the first ten that fit are listed in less than a second.

#include <p3d/config/cluster.hpp>
#include <p3d/config/config.hpp>
#include <p3d/plan/kernel_generation.hpp>
#include <p3d/plan/step_time.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace p3d::plan {

struct SearchOptions {
  int ranks = 1;
  /// Keys that keep their value; the others of config::layout_keys() are free.
  std::vector<std::string> fixed;
  int top = 20;  ///< layouts that are wanted
  /// Leaves out layouts that take more time and no less memory than another one: the Pareto front of both.
  bool front = false;
};

/// A layout that fits.
struct PlannedLayout {
  config::Config config;
  StepTime time;
  double bytes = 0;  ///< memory of the rank that has most
};

struct SearchResult {
  std::vector<PlannedLayout> layouts;  ///< sorted by time; equal ones by their sizes
  std::int64_t predicted = 0;          ///< layouts whose time was predicted
  /// Layouts that are quicker than the last one listed and do not fit, by reason.
  std::map<std::string, std::int64_t> rejected;
  bool complete = true;  ///< false: more layouts were too large than a search checks, and quicker ones may be left out
  double least_bytes = 0;  ///< memory of the smallest layout that was looked at, where none fits
};

/// Searches the layouts of `config`, whose model, batch.global and types stay. A rank may take the memory of its
/// device, or memory.limit where that is less. A divided vocabulary may need more memory with few microbatches than
/// with all: such a layout must fit with both. The result does not depend on the order of anything. Throws base::Error
/// (bad_input) where the number of ranks or the batch allows no layout at all.
SearchResult search_layouts(config::Config const& config, config::Cluster const& cluster,
                            KernelGeneration const& kernels, SearchOptions const& options);

/// search_layouts(), but throws base::Error (bad_input) where no layout fits: with the least memory that one needs, and
/// the least number of ranks on which one fits; or with the key whose rule refuses them.
SearchResult require_layouts(config::Config const& config, config::Cluster const& cluster,
                             KernelGeneration const& kernels, SearchOptions const& options);

/// The layout in words: "tp 8, pp 2, dp 16, micro 4, shard optimizer".
std::string layout_of(config::Config const& config);
/// The overrides of the input that make a layout: "parallel.tp=8", one for each of config::layout_keys().
std::vector<std::string> layout_overrides(config::Config const& config);

}  // namespace p3d::plan
