// SPDX-License-Identifier: Apache-2.0
// The width of the terminal behind a launcher. A rank's own output is a pipe to its launcher, so the launchers among
// the ancestors of this process are looked at in /proc.
#include <p3d/report/terminal.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace p3d::report {

namespace {

/// The columns of a terminal, 80 where it does not say; 0 for a file that is no terminal.
int columns_of(int file) {
  if (isatty(file) == 0) return 0;
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// A process of this node.
struct Process {
  std::string name;
  int parent = 0;
};

/// The name and parent of a process, from /proc; empty where it does not say.
Process look_at(int pid) {
  Process process;
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Name:\t")) process.name = line.substr(6);
    if (line.starts_with("PPid:\t")) process.parent = std::atoi(line.c_str() + 6);
  }
  return process;
}

/// True for the programs that start MPI ranks, and for their helpers on each node.
bool is_launcher(std::string_view name) {
  for (std::string_view start : {"mpiexec", "mpirun", "hydra_", "orterun", "prterun", "prte", "orted", "srun"}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

}  // namespace

int terminal_columns() {
  int pid = getppid();
  // Open MPI gives each of its ranks a terminal of its own, whatever its own output is; so the launcher's output
  // counts.
  if (!is_launcher(look_at(pid).name)) return columns_of(STDOUT_FILENO);
  struct stat own {};
  if (fstat(STDOUT_FILENO, &own) != 0 || S_ISREG(own.st_mode)) return 0;
  // Launchers may be nested (srun, hydra_pmi_proxy, mpiexec). The first ancestor whose output is a device of /dev tells
  // the terminal.
  constexpr int most_ancestors = 6;
  for (int i = 0; i < most_ancestors && pid > 1; ++i) {
    auto const ancestor = look_at(pid);
    if (!is_launcher(ancestor.name)) return 0;
    std::error_code none;
    auto const target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", pid), none).string();
    if (target.starts_with("/dev/")) {
      int const file = open(target.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
      int const columns = file >= 0 ? columns_of(file) : 0;
      if (file >= 0) close(file);
      return columns;
    }
    pid = ancestor.parent;
  }
  return 0;
}

}  // namespace p3d::report
