// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the ranks run: host, cores, threads, GPU. What two ranks want at once is found here and said with the fix,
// because it costs more speed than anything in an input file, and shows nowhere else.

#include <p3d/comm/communicator.hpp>

#include <string>
#include <vector>

namespace p3d::report {

struct RankPlacement {
  std::string host;
  std::vector<int> cores;  ///< that this rank may use, ascending; empty: unknown
  int host_cores = 0;      ///< that the host has; 0: unknown
  int threads = 1;         ///< of kernels
  int blas_threads = 0;    ///< in force; 0: unknown
  int gpu = -1;            ///< number among those visible; -1: none
  std::string gpu_name;
  std::string gpu_bus;  ///< tells GPUs of a host apart; "": unknown, then the number does
};

/// This rank's own. With Kokkos running.
RankPlacement this_placement(int blas_threads);
/// The places of all ranks, on every rank. Collective.
std::vector<RankPlacement> gather_placements(RankPlacement const& mine, comm::Communicator& world);

/// A line about ranks that are all free to use the same cores and are more than these; empty when there are none. No
/// error: a laptop is meant to be used so.
std::string placement_note(std::vector<RankPlacement> const& places);

/// Lines such as "  ranks 0-3 on node1: cores 0-7, 8 threads"; neighbours that are alike share one; at most
/// `max_lines`.
std::string describe(std::vector<RankPlacement> const& places, int max_lines);
/// One message per error, with its fix; empty when no two ranks are in each other's way.
std::vector<std::string> placement_warnings(std::vector<RankPlacement> const& places);

/// Gathers, prints and warns. `blas_threads`: what linalg::set_blas_threads gave. Collective.
void report_placement(int blas_threads, comm::Communicator& world);

}  // namespace p3d::report
