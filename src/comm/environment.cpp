// SPDX-License-Identifier: Apache-2.0
// Start and end of MPI. The start checks that the ranks form one program (agreement.hpp), measures the node, and opens
// the watchdog. The end meets all ranks in a watched barrier before MPI_Finalize, and after an exception it aborts all
// ranks instead, since MPI_Finalize would wait for ranks that do not come.
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/prctl.h>
#else
#include <thread>
#endif

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "agreement.hpp"
#include "internal.hpp"
#include "nccl_engine.hpp"
#include "node_memory.hpp"
#include "watchdog.hpp"

namespace p3d::comm {

namespace {

/// The measured node, and the code of Environment::exit_code().
NodeShare the_node;
int the_exit_code = static_cast<int>(base::ExitCode::run_failed);

/// Measures the ranks on this node, and the cores that they may use (launchers often bind each rank to its own).
/// Collective.
NodeShare measure_node() {
  NodeShare node;
  MPI_Comm shared = MPI_COMM_NULL;
  detail::check(
      blocking("MPI_Comm_split_type", "world",
               [&] { return MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared); }),
      "MPI_Comm_split_type", "world");
#if defined(__linux__)
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  detail::check(blocking("MPI_Allreduce", "node",
                         [&] { return MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof(cores), MPI_BYTE, MPI_BOR, shared); }),
                "MPI_Allreduce", "node");
  node.cores = std::max(1, CPU_COUNT(&cores));
#else
  node.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
  MPI_Comm_size(shared, &node.ranks);
  MPI_Comm_rank(shared, &node.rank);
  blocking("MPI_Comm_free", "node", [&] { return MPI_Comm_free(&shared); });
  return node;
}

/// Calls MPI_Finalize, with a limit where it may never return.
void finalize(int exit_code) {
  int size = 1, length = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";  // the whole text, of several lines
  MPI_Get_library_version(library, &length);
  bool const doubtful = the_node.ranks < size && detail::finalize_may_hang(library);
  if (doubtful) detail::leave_finalize_after_a_while(exit_code);
  detail::check(blocking("MPI_Finalize", "world", [] { return MPI_Finalize(); }), "MPI_Finalize", "world");
  if (doubtful) detail::stay_after_finalize();
}

/// Ends this process with ExitCode::bad_input; the rank that `speaks` prints the text. All ranks must come here.
/// Collective when the world has several.
[[noreturn]] void refuse(std::string const& text, bool speaks) {
  constexpr int code = static_cast<int>(base::ExitCode::bad_input);
  if (speaks) std::fputs(("p3d stops:\n" + text + "\n").c_str(), stderr);
  std::fflush(stderr);
  finalize(code);
  std::exit(code);
}

}  // namespace

namespace detail {

namespace {
// An alarm's handler may read nothing else.
volatile std::sig_atomic_t code_of_the_alarm = 0;
}  // namespace

void leave_within(unsigned seconds, int exit_code) {
  code_of_the_alarm = exit_code;
  std::signal(SIGALRM, [](int) { _exit(code_of_the_alarm); });
  alarm(seconds);
}

}  // namespace detail

NodeShare node_share() { return the_node; }

Environment::Environment(int& argc, char**& argv)
    : exceptions_(std::uncaught_exceptions()), owner_(!detail::mpi_runs()) {
  if (!owner_) return;
  auto const words = command_words(argc, argv);  // before MPI changes them
  auto const launched = launch();
  int provided = MPI_THREAD_SINGLE;
  // MPICH takes SIGUSR1 for news of a process that has failed, and a process without a launcher then waits for one
  // without end. Users send it to ask for a checkpoint.
  struct sigaction before {};
  bool const known = sigaction(SIGUSR1, nullptr, &before) == 0;
  {
    BlockingCall const here("MPI_Init_thread", "world", std::max(wait_policy().start_s, wait_policy().timeout_s));
    detail::check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", "world");
  }
  if (known) sigaction(SIGUSR1, &before, nullptr);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  base::set_log_rank(rank, size);
  if (provided < MPI_THREAD_FUNNELED) {
    throw base::Error(
        {.expected = "an MPI library that allows threads beside the one that calls MPI (MPI_THREAD_FUNNELED)",
         .found = "one that does not",
         .where = fmt::format("rank {}", rank),
         .fix = "use an MPI library built with thread support"});
  }
#if defined(__linux__)
  prctl(PR_SET_TIMERSLACK, 1000UL);  // sleeps of 20 us last 20 us, not 70
#endif
  if (auto const text = detail::lonely(launched, size, library_version()); !text.empty()) {
    refuse(text, launched.rank == 0);
  }
  if (auto const text = detail::different_words(words); !text.empty()) refuse(text, rank == 0);
  the_node = measure_node();
  set_wait_policy(make_wait_policy(wait_policy().timeout_s, the_node.ranks, the_node.cores));
  detail::open_watchdog();
}

int Environment::exit_code(int code) { return the_exit_code = code; }

Environment::~Environment() {
  if (!owner_ || !detail::mpi_runs()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    base::error_here("an exception ends this rank: ending all ranks");
    abort_all(static_cast<int>(base::ExitCode::run_failed));
  }
  try {
    detail::watched_barrier(MPI_COMM_WORLD, "world", "finalize");  // a rank that never comes is reported
    detail::close_node_memory();
    detail::close_watchdog();
    finalize(the_exit_code);
  } catch (std::exception const& e) {
    base::error_here(e.what());
    abort_all(static_cast<int>(base::ExitCode::run_failed));
  }
}

void abort_all(int exit_code) {
  std::fflush(nullptr);
  if (detail::mpi_runs()) {
    detail::leave_within(10, exit_code);  // in case MPI_Abort hangs; the launcher then ends the others
    detail::abort_nccl();
    base::let_last_message_out();
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

}  // namespace p3d::comm
