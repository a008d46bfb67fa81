// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures what the planner wants to know of a machine: GEMMs, kernels that wait for memory, attention, launches, and
// the links between the ranks. All ranks work at the same time, as in a step, so what they share is shared here too.
// plan/calibration.hpp makes a cluster file of the results. It takes some twenty seconds on a CPU.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/plan/calibration.hpp>

#include <functional>
#include <string>
#include <vector>

namespace p3d::run {

struct MachineTrialOptions {
  std::string name;  ///< the machine's name; "": that of the first host
  /// Types whose GEMMs are timed; the first one is the type of everything else.
  std::vector<config::Precision> precisions;
  std::function<void(std::string const&)> progress;  ///< is told what is measured next, on every rank
};

/// The types that this build computes in, the usual one of its devices first: fp32 on hosts, bf16 on GPUs.
std::vector<config::Precision> usual_precisions();

/// Measures. Throws base::Error (bad_input) on all ranks for a single rank, whose links cannot be timed, and for nodes
/// with different numbers of ranks, or whose ranks are not neighbours. Collective.
plan::MachineSamples try_machine(MachineTrialOptions const& options, comm::Communicator& world);

/// Sizes [m, n, k] of the GEMMs whose formula is fitted: twelve shapes between side^3 and (side / 16)^3.
std::vector<plan::GemmSample> trial_shapes(std::int64_t side);

}  // namespace p3d::run
