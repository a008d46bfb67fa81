// SPDX-License-Identifier: Apache-2.0
#pragma once
// Facts that the launcher gives this process in environment variables: they are known before MPI starts.

#include <string>
#include <vector>

namespace p3d::comm {

/// The launcher's view of this process.
struct Launch {
  int rank = 0;               ///< rank of this process; 0 without a launcher
  int size = 0;               ///< number of processes of this start; 0: not known, 1: only this one
  std::string rank_variable;  ///< "PMI_RANK", "SLURM_PROCID", ...; empty without a launcher
  std::string size_variable;  ///< the variable that told `size`
};

/// Reads the environment. A batch script, or the shell of an allocation, is no task of a Slurm step: it counts as one
/// process, although SLURM_NTASKS is set there.
Launch launch();

/// The words after the program's name, without Kokkos' options (which Kokkos reads itself): wrappers give each rank its
/// own.
std::vector<std::string> command_words(int argc, char const* const* argv);

/// One process of this node that belongs to this run: its parent (the launcher's daemon) is also the parent of this
/// process.
struct NodeProcess {
  int rank = 0;          ///< the launcher's number; -1 when it has ended
  long process = 0;      ///< process number of the system
  bool stopped = false;  ///< stopped by a signal
  bool ended = false;    ///< it has ended, but its parent has not collected it yet
};
/// Lists the processes of this node that started with a rank, this one included, sorted by rank. It is empty where
/// /proc does not tell.
std::vector<NodeProcess> node_processes();
/// The process in words: "process 12 runs".
std::string describe(NodeProcess const& process);

}  // namespace p3d::comm
