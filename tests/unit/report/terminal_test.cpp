// SPDX-License-Identifier: Apache-2.0
#include <p3d/report/terminal.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace {

constexpr int columns = 123;

/// A terminal that nobody looks at.
struct Terminal {
  int master = posix_openpt(O_RDWR | O_NOCTTY);
  int slave = -1;
  Terminal() {
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return;
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    winsize size{};
    size.ws_col = columns;
    ioctl(slave, TIOCSWINSZ, &size);
  }
  ~Terminal() { close(slave), close(master); }
};

/// What a process sees whose standard output is `own`, and whose parent has that name and standard output.
int columns_seen(int own, char const* parent, int parents_output) {
  pid_t const middle = fork();
  if (middle == 0) {
    prctl(PR_SET_NAME, parent);
    dup2(parents_output, STDOUT_FILENO);
    pid_t const rank = fork();
    if (rank == 0) {
      dup2(own, STDOUT_FILENO);
      _exit(p3d::report::terminal_columns());
    }
    int status = 0;
    waitpid(rank, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = 0;
  waitpid(middle, &status, 0);
  return WEXITSTATUS(status);
}

}  // namespace

TEST(Terminal, ALaunchersOwnOutputCounts) {
  Terminal const terminal;
  if (terminal.slave < 0) GTEST_SKIP() << "no terminals here";
  int const file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_GE(file, 0);
  EXPECT_EQ(columns_seen(terminal.slave, "bash", file), columns);
  EXPECT_EQ(columns_seen(ends[1], "bash", terminal.slave), 0);
  EXPECT_EQ(columns_seen(file, "bash", terminal.slave), 0);
  EXPECT_EQ(columns_seen(ends[1], "mpiexec.hydra", terminal.slave), columns);  // a pipe to the launcher
  EXPECT_EQ(columns_seen(ends[1], "mpiexec.hydra", file), 0);
  EXPECT_EQ(columns_seen(terminal.slave, "mpirun", file), 0);  // a terminal of the launcher's making, into a log
  EXPECT_EQ(columns_seen(terminal.slave, "mpirun", terminal.slave), columns);
  EXPECT_EQ(columns_seen(file, "mpirun", terminal.slave), 0);
  close(file), close(ends[0]), close(ends[1]);
}
