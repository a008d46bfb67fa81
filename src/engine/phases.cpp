// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/phases.hpp>

#include <fmt/format.h>

namespace p3d::engine {

char const* name(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::stage_comm: return "TP/CP/EP communication";
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

PhaseSpread spread(PhaseTimes const& times, comm::Communicator& comm) {
  PhaseSpread s{times, times, times};
  auto const n = static_cast<std::int64_t>(num_phases);
  comm.all_reduce(s.min.seconds.data(), n, comm::Type::float64, comm::Reduction::min).wait();
  comm.all_reduce(s.mean.seconds.data(), n, comm::Type::float64, comm::Reduction::sum).wait();
  comm.all_reduce(s.max.seconds.data(), n, comm::Type::float64, comm::Reduction::max).wait();
  for (auto& m : s.mean.seconds) m /= comm.size();
  return s;
}

std::string to_table(PhaseSpread const& s) {
  double const total = s.mean.total();
  std::string text = fmt::format("{:<22}{:>10}{:>10}{:>10}{:>9}\n", "seconds", "min", "mean", "max", "share");
  for (std::size_t i = 0; i < num_phases; ++i) {
    auto const phase = static_cast<Phase>(i);
    text += fmt::format("{:<22}{:>10.3f}{:>10.3f}{:>10.3f}{:>8.1f}%\n", name(phase), s.min[phase], s.mean[phase],
                        s.max[phase], total > 0 ? 100.0 * s.mean[phase] / total : 0.0);
  }
  return text;
}

}  // namespace p3d::engine
