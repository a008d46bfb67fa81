// comm.allreduce = "auto" where the order of summation may depend on time: the quickest of a few trials.

#include <p3d/base/timer.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "all_reducer.hpp"

namespace p3d::comm::detail {

namespace {
struct Trial {
  std::int64_t bytes;
  int repeats;
};
// A few hundred operations together: well under 0.3 s for all communicators of a mesh where each rank has a core.
constexpr Trial trials[] = {{64, 9}, {4 << 10, 7}, {64 << 10, 5}, {512 << 10, 3}, {4 << 20, 3}};
constexpr double worth_it = 0.97;  ///< of MPI's time
}  // namespace

void AllReducer::measure(Communicator& comm) {
  std::vector<AllReduce> candidates{AllReduce::mpi, AllReduce::tree, AllReduce::ring};
  if (shared_) candidates.push_back(num_nodes_ > 1 ? AllReduce::hierarchical : AllReduce::shared);
  std::vector<double> medians;
  std::vector<float> buffer(trials[std::size(trials) - 1].bytes / sizeof(float), 0.0F);
  for (auto const& trial : trials) {
    for (auto const candidate : candidates) {
      table_ = {{0, candidate}};
      std::vector<double> times;
      for (int i = 0; i < trial.repeats; ++i) {
        base::Stopwatch watch;
        comm.all_reduce(buffer.data(), trial.bytes / static_cast<std::int64_t>(sizeof(float)), Type::float32, Reduction::sum).wait();
        times.push_back(watch.seconds());
      }
      std::sort(times.begin(), times.end());
      medians.push_back(times[times.size() / 2]);
    }
  }
  // All ranks must choose alike: the slowest rank's time counts.
  table_ = {{0, AllReduce::mpi}};
  comm.all_reduce(medians.data(), static_cast<std::int64_t>(medians.size()), Type::float64, Reduction::max).wait();

  std::vector<Row> table;
  auto time = medians.begin();
  std::int64_t before = 0;
  for (auto const& trial : trials) {
    auto const end = time + static_cast<std::ptrdiff_t>(candidates.size());
    auto const best = std::min_element(time, end);
    auto const chosen = *best < worth_it * *time ? candidates[static_cast<std::size_t>(best - time)] : AllReduce::mpi;
    // Half way, on the logarithmic scale, to the last trial.
    auto const from = before == 0 ? 0 : static_cast<std::int64_t>(std::sqrt(static_cast<double>(before) * static_cast<double>(trial.bytes)));
    if (table.empty() || table.back().algorithm != chosen) table.push_back({from, chosen});
    before = trial.bytes;
    time = end;
  }
  table_ = table;
}

}  // namespace p3d::comm::detail
