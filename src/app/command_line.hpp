// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line of p3d itself: an input file, overrides of its keys, and options.

#include <string>
#include <vector>

namespace p3d::app {

/// The parsed command line.
struct CommandLine {
  std::string input;                   ///< path of the TOML file; may be empty when overrides give all keys
  std::vector<std::string> overrides;  ///< "section.key=value"
  bool check = false;                  ///< validate and describe, start nothing
  bool verbose = false;                ///< print the complete input too
  int ranks = 0;                       ///< with --check: number of ranks to assume; 0: as the input says
  bool finished = false;               ///< --help or --version was printed, or the line was wrong: exit with exit_code
  int exit_code = 0;
};

/// Parses the command line; prints help, version or the error itself (on the first rank only).
CommandLine parse_command_line(int argc, char** argv);

/// The rank that the launcher's environment variables give this process, or 0; known before MPI starts.
int launcher_rank();

}  // namespace p3d::app
