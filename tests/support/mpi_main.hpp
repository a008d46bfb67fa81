// SPDX-License-Identifier: Apache-2.0
#pragma once
// main() of an MPI test program: include this in one source file of a test that is registered with RANKS, and link
// p3d_comm. (mpi_kokkos_main.hpp starts Kokkos as well.)
//
// Every rank runs all tests. Rank 0 prints as GoogleTest does; the others print only their failures, with their rank.
// The exit code is non-zero on every rank when any rank failed. No collective inside a failure listener, so a failing
// rank cannot hang the others there; ranks that fall out of step are ended by the watchdog after 60 s.

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/wait.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <sstream>
#include <string>

namespace p3d::test {

/// Prints failures, each with one write.
class RankPrinter : public ::testing::EmptyTestEventListener {
  // Kept, because GoogleTest holds the lock of current_test_info() while it reports a failure.
  std::string test_;
  void OnTestStart(::testing::TestInfo const& info) override {
    test_ = std::string(info.test_suite_name()) + '.' + info.name() + ": ";
  }
  void OnTestEnd(::testing::TestInfo const&) override { test_.clear(); }
  void OnTestPartResult(::testing::TestPartResult const& result) override {
    if (!result.failed()) return;
    std::ostringstream text;
    text << test_ << (result.file_name() != nullptr ? result.file_name() : "?") << ':' << result.line_number() << '\n'
         << result.message();
    base::error_here(text.str());
  }
};

/// Runs all tests between MPI_Init and MPI_Finalize. `start(argc, argv)` may start more and returns what keeps it
/// running.
template <class Start>
int mpi_main(int argc, char** argv, Start&& start) {
  comm::Environment environment(argc, argv);
  try {
    [[maybe_unused]] auto started = start(argc, argv);
    auto policy = comm::wait_policy();
    policy.timeout_s = 60.0;
    comm::set_wait_policy(policy);
    ::testing::InitGoogleTest(&argc, argv);
    if (base::log_rank() > 0) {
      auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      delete listeners.Release(listeners.default_xml_generator());
      listeners.Append(new RankPrinter);
    }
    std::int64_t failed = RUN_ALL_TESTS() != 0 ? 1 : 0;
    auto world = comm::Communicator::world();
    world.all_reduce(&failed, 1, comm::Type::int64, comm::Reduction::sum).wait();
    if (failed > 0) base::warn_root(std::to_string(failed) + " rank(s) failed");
    return environment.exit_code(failed > 0 ? 1 : 0);
  } catch (std::exception const& e) {
    base::error_here(e.what());
    comm::abort_all(static_cast<int>(base::ExitCode::run_failed));
  }
}

}  // namespace p3d::test

#ifndef P3D_TEST_NO_MAIN
int main(int argc, char** argv) {
  return p3d::test::mpi_main(argc, argv, [](int, char**) { return 0; });
}
#endif
