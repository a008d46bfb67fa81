// SPDX-License-Identifier: Apache-2.0
// Measures the table of algorithms for comm.allreduce = "auto" where the order of summation may depend on time: the
// quickest of a few trials for each length.

#include <p3d/base/timer.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "all_reducer.hpp"

namespace p3d::comm::detail {

namespace {
/// One length of the trials.
struct Trial {
  std::int64_t bytes;
  int operations;  ///< timed as one: a single short one would be over before the ranks that started late
};
// A few hundred operations take well under 0.3 s for all communicators of a mesh where each rank has a core.
constexpr Trial trials[] = {{64, 12}, {4 << 10, 8}, {64 << 10, 6}, {512 << 10, 3}, {4 << 20, 2}};
constexpr double worth_it = 0.97;  ///< share of MPI's time below which another algorithm is taken
}  // namespace

void AllReducer::measure(Communicator& comm) {
  std::vector<AllReduce> candidates{AllReduce::mpi, AllReduce::tree, AllReduce::ring};
  if (shared_) candidates.push_back(nodes_.size() > 1 ? AllReduce::hierarchical : AllReduce::shared);
  // The buffer lies where a run has its buffers, and is written before as a run does it, so that it is in the caches of
  // its owner.
  constexpr std::int64_t most = trials[std::size(trials) - 1].bytes;
  SharedBuffer const shared(static_cast<std::size_t>(most));
  std::vector<float> own(shared.data() == nullptr ? most / sizeof(float) : 0);
  auto* const buffer = shared.data() == nullptr ? own.data() : static_cast<float*>(shared.data());
  auto const seconds = [&](std::int64_t count, int operations) {
    base::Stopwatch watch;
    for (int i = 0; i < operations; ++i) {
      std::fill_n(buffer, count, 1.0F);
      comm.all_reduce(buffer, count, Type::float32, Reduction::sum).wait();
    }
    return watch.seconds();
  };
  std::vector<double> least;
  for (auto const& trial : trials) {
    auto const count = trial.bytes / static_cast<std::int64_t>(sizeof(float));
    for (auto const candidate : candidates) {
      table_ = {{0, candidate}};
      seconds(count, 1);  // fills caches and opens connections
      double const first = seconds(count, trial.operations);
      least.push_back(std::min(first, seconds(count, trial.operations)));
    }
  }
  // All ranks must choose the same algorithm: the slowest rank's time counts.
  table_ = {{0, AllReduce::mpi}};
  comm.all_reduce(least.data(), static_cast<std::int64_t>(least.size()), Type::float64, Reduction::max).wait();

  std::vector<Row> table;
  auto time = least.begin();
  std::int64_t before = 0;
  for (auto const& trial : trials) {
    auto const end = time + static_cast<std::ptrdiff_t>(candidates.size());
    auto const best = std::min_element(time, end);
    auto const chosen = *best < worth_it * *time ? candidates[static_cast<std::size_t>(best - time)] : AllReduce::mpi;
    // A row begins half way, on the logarithmic scale, between two trials.
    auto const from =
        before == 0
            ? 0
            : static_cast<std::int64_t>(std::sqrt(static_cast<double>(before) * static_cast<double>(trial.bytes)));
    if (table.empty() || table.back().algorithm != chosen) table.push_back({from, chosen});
    before = trial.bytes;
    time = end;
  }
  table_ = table;
}

}  // namespace p3d::comm::detail
