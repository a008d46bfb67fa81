// SPDX-License-Identifier: Apache-2.0
// The last line of defence of every command: an error becomes a text and an exit code, and an output that could not be
// written (a full disk behind a pipe or a redirection) becomes an error too.
#include "guard.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/memory_limits.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>

namespace p3d::app {

namespace {

/// Prints the text of an error on stderr.
void print_stop(std::string const& text) {
  std::fputs(("p3d stops:\n" + text + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

int guarded(std::function<int()> const& command) {
  int code = 0;
  try {
    code = command();
  } catch (...) {
    auto const failure = base::current_failure();
    if (!failure.reported) print_stop(failure.text);
    code = static_cast<int>(failure.code);
  }
  // errno is cleared, so that a message below tells why the flush failed and not what failed earlier.
  errno = 0;
  std::cout.flush();
  bool const flushed = std::fflush(stdout) == 0;
  if (flushed && std::cout && std::ferror(stdout) == 0) return code;
  print_stop(
      base::format({.expected = "standard output that can be written",
                    .found = errno != 0 ? std::generic_category().message(errno) : "what was printed did not get there",
                    .where = "standard output",
                    .fix = "free space on its disk, or send it elsewhere"}));
  return code != 0 ? code : static_cast<int>(base::ExitCode::run_failed);
}

int with_ranks(int argc, char** argv, std::function<int(comm::Communicator&)> const& work) {
  comm::Environment mpi(argc, argv);
  return mpi.exit_code(comm::leave_together([&] {
    auto const node = comm::node_share();
    device::Environment kokkos(argc, argv, std::max(1, node.cores / node.ranks), node.rank);
    auto world = comm::Communicator::world();
    comm::agree(world, "start under its memory limit", [] { engine::require_address_space(device::host_threads()); });
    return work(world);
  }));
}

}  // namespace p3d::app
