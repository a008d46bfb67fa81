// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/file_watch.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/comm/communicator.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

namespace p3d::io {

namespace {

/// Before the ranks that wait for this one report that it does not answer.
double budget() {
  double const timeout = comm::wait_policy().timeout_s;
  return timeout - std::min(1.0, 0.25 * timeout);
}

/// Other threads hang in the kernel or wait for MPI: this one ends the process without MPI, and the launcher the
/// others.
void end(comm::OverdueCall const& overdue) {
  base::error_here(
      "p3d stops: the disk does not answer\n" +
      base::format({.expected = fmt::format("a file operation that ends within comm.timeout_s = {:g} s",
                                            comm::wait_policy().timeout_s),
                    .found = fmt::format("{} that has not returned for {:.1f} s", overdue.call, overdue.waited_s),
                    .where = overdue.subject,
                    .fix = "look at the file system and its server (df, dmesg); when it answers again, "
                           "start the run again"}) +
      "\nEnding all ranks.");
  base::let_last_message_out();
  comm::leave_without_mpi(static_cast<int>(base::ExitCode::timeout));
}

}  // namespace

FileOperation::FileOperation(char const* name, std::string const& path) : call_(name, path, budget(), end) {
  // A file that reaches the limit of its size is an error of that write, told as such, and no reason to die.
  static auto const ignored = std::signal(SIGXFSZ, SIG_IGN);
  (void)ignored;
}

}  // namespace p3d::io
