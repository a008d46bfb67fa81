// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/process.hpp>

#include <gtest/gtest.h>

#include <csignal>
#include <optional>

namespace {

using namespace p3d;

bool blocked(int signal) {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, signal) == 1;
}

volatile std::sig_atomic_t taken = 0;

TEST(SignalsBlocked, KeepsSignalsForLater) {
  auto const old = std::signal(SIGUSR1, [](int) { taken = taken + 1; });
  taken = 0;
  std::optional<base::SignalsBlocked> here(std::in_place);
  std::raise(SIGUSR1);
  EXPECT_EQ(taken, 0);
  here.reset();
  EXPECT_EQ(taken, 1);
  std::signal(SIGUSR1, old);
}

TEST(SignalsBlocked, LeavesErrorsAndWhatWasBlocked) {
  base::SignalsBlocked const outer;
  {
    base::SignalsBlocked const inner;
    EXPECT_TRUE(blocked(SIGTERM));
    for (int const error : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) EXPECT_FALSE(blocked(error));
  }
  EXPECT_TRUE(blocked(SIGTERM));
}

}  // namespace
