// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the launcher says of this process, in environment variables: known before MPI starts.

#include <string>
#include <vector>

namespace p3d::comm {

struct Launch {
  int rank = 0;               ///< of this process; 0 without a launcher
  int size = 0;               ///< processes that were started together; 0: not known, 1: this one alone
  std::string rank_variable;  ///< "PMI_RANK", "SLURM_PROCID", ...; empty without a launcher
  std::string size_variable;
};

/// Reads the environment. A batch script, or the shell of an allocation, is no task of a Slurm step and counts as one
/// process, though SLURM_NTASKS is set there.
Launch launch();

/// The words after the program's name, without what wrappers give each rank for itself: Kokkos' options, which stay for
/// Kokkos.
std::vector<std::string> command_words(int argc, char const* const* argv);

/// The process of a rank of this node: one with the same parent as this process (the launcher's daemon).
struct NodeProcess {
  int rank = 0;  ///< as the launcher numbers them
  long process = 0;
  bool stopped = false;
  bool ended = false;  ///< gone, but its parent has not looked yet
};
/// Those that started with a rank, this one included, by rank. Empty where /proc does not say.
std::vector<NodeProcess> node_processes();
/// "process 12 runs".
std::string describe(NodeProcess const& process);

}  // namespace p3d::comm
