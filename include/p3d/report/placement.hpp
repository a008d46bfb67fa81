// SPDX-License-Identifier: Apache-2.0
#pragma once
// The placement of the ranks: host, cores, threads, GPU. Two ranks that want the same core or GPU are found here and
// told with the fix, because that costs more speed than anything in an input file, and shows nowhere else.

#include <p3d/comm/communicator.hpp>

#include <string>
#include <vector>

namespace p3d::report {

/// The placement of one rank.
struct RankPlacement {
  std::string host;
  std::vector<int> cores;  ///< cores that this rank may use, ascending; empty: unknown
  int host_cores = 0;      ///< cores that the host has; 0: unknown
  int threads = 1;         ///< threads of kernels
  int blas_threads = 0;    ///< threads of the BLAS in force; 0: unknown
  int gpu = -1;            ///< number among the visible GPUs; -1: none
  std::string gpu_name;
  std::string gpu_bus;  ///< tells GPUs of a host apart; "": unknown, then the number does
};

/// The placement of this rank. Kokkos must be running.
RankPlacement this_placement(int blas_threads);
/// The placements of all ranks, on every rank. Collective.
std::vector<RankPlacement> gather_placements(RankPlacement const& mine, comm::Communicator& world);

/// A line about ranks that may all use the same cores and are more than these; empty when there are none. This is no
/// error: a laptop is meant to be used so.
std::string placement_note(std::vector<RankPlacement> const& places);

/// Lines such as "  ranks 0-3 on node1: cores 0-7, 8 threads", at most `max_lines`. Neighbouring ranks with the same
/// placement share one.
std::string describe(std::vector<RankPlacement> const& places, int max_lines);
/// One message for each error, with its fix; empty when no two ranks want the same core or GPU.
std::vector<std::string> placement_warnings(std::vector<RankPlacement> const& places);

/// Gathers the placements, prints them and warns. `blas_threads` is what linalg::set_blas_threads returned. Collective.
void report_placement(int blas_threads, comm::Communicator& world);

}  // namespace p3d::report
