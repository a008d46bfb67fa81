// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/phases.hpp>

#include <fmt/format.h>

namespace p3d::engine {

char const* name(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::tp_comm: return "TP communication";
    case Phase::pipeline_wait: return "pipeline wait";
    case Phase::dp_comm: return "DP communication";
    case Phase::optimizer: return "optimizer";
    case Phase::other: return "other";
  }
  return "?";
}

double PhaseTimes::total() const {
  double sum = 0.0;
  for (double s : seconds) sum += s;
  return sum;
}

std::string summarize(PhaseTimes const& times, comm::Communicator& comm) {
  auto low = times.seconds, mean = times.seconds, high = times.seconds;
  auto const n = static_cast<std::int64_t>(num_phases);
  comm.all_reduce(low.data(), n, comm::Type::float64, comm::Reduction::min).wait();
  comm.all_reduce(mean.data(), n, comm::Type::float64, comm::Reduction::sum).wait();
  comm.all_reduce(high.data(), n, comm::Type::float64, comm::Reduction::max).wait();
  double total = 0.0;
  for (auto& m : mean) total += m /= comm.size();
  std::string text = fmt::format("{:<18}{:>10}{:>10}{:>10}{:>9}\n", "seconds", "min", "mean", "max", "share");
  for (std::size_t i = 0; i < num_phases; ++i) {
    text += fmt::format("{:<18}{:>10.3f}{:>10.3f}{:>10.3f}{:>8.1f}%\n", name(static_cast<Phase>(i)), low[i], mean[i],
                        high[i], total > 0 ? 100.0 * mean[i] / total : 0.0);
  }
  return text;
}

}  // namespace p3d::engine
