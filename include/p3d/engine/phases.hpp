// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time of a rank, divided into phases.

#include <p3d/comm/communicator.hpp>
#include <p3d/schedule/action.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::engine {

/// Phases of a step. Waiting for a message counts as communication, not as the phase it interrupts.
/// stage_comm: between ranks of a stage, inside its layers (tensor, context and expert parallelism).
enum class Phase : std::size_t { forward, backward, stage_comm, pipeline_wait, dp_comm, optimizer, other };
inline constexpr std::size_t num_phases = 7;
char const* name(Phase phase);

/// Seconds per phase on this rank.
struct PhaseTimes {
  std::array<double, num_phases> seconds{};
  double& operator[](Phase p) { return seconds[static_cast<std::size_t>(p)]; }
  double operator[](Phase p) const { return seconds[static_cast<std::size_t>(p)]; }
  double total() const;
};

/// A timer of a rank: seconds in one kind of work since the start, and how often it was done.
struct Timer {
  std::string name;
  double seconds = 0.0;
  std::int64_t calls = 0;
};

/// Seconds and number of the actions of each kind on this rank (schedule::Op).
struct ActionTimes {
  std::array<double, schedule::num_ops> seconds{};
  std::array<std::int64_t, schedule::num_ops> calls{};
};

/// Seconds per phase over ranks.
struct PhaseSpread {
  PhaseTimes min, mean, max;
};
/// Over the ranks of `comm`, the same on every rank. Collective.
PhaseSpread spread(PhaseTimes const& times, comm::Communicator& comm);

/// A table of min / mean / max with each phase's share of the mean total.
std::string to_table(PhaseSpread const& spread);

}  // namespace p3d::engine
