// SPDX-License-Identifier: Apache-2.0
// A trial of GPU memory in MPI. It survives an MPI library that takes such memory for memory of the host.
//
// Such a library copies from, or to, an address that the processor cannot reach, and the process gets SIGSEGV. Jumping
// out of its handler would leave the library in the middle of its work, with its locks held; a child process cannot use
// this process' MPI. So the handler repairs the access: it puts zeroed memory of the host at the page, and returns. The
// copy goes on, the library ends its call in good order, and the zeros tell what happened. The GPU's own memory is not
// touched; the pages are used for nothing else afterwards. An error that cannot be repaired (at another address, an
// abort) ends the process as it would have done, after one line that says what was tried.

#include <p3d/base/error.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/comm/wait.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <vector>

#include "internal.hpp"
#include "mpi_types.hpp"

namespace p3d::comm {

namespace {

/// Bytes; every library copies the short messages.
constexpr std::array<std::int64_t, 3> lengths{1024, 65536, trial_bytes};
constexpr int tag = 77;

/// Addresses of a memory under trial.
struct Range {
  std::uintptr_t begin = 0, end = 0;
};
/// State of the handler: the memories under trial, and whether it has repaired an access.
struct {
  std::array<Range, 2> ranges;
  std::uintptr_t page = 4096;
  volatile std::sig_atomic_t repaired = 0;
} guarded;

/// Signals that the handler takes, and their handlers before.
constexpr std::array<int, 3> signals{SIGSEGV, SIGBUS, SIGABRT};
std::array<struct sigaction, signals.size()> before;

/// The handler. It puts a page of host memory under an access inside the ranges; other signals end the process.
extern "C" void repair(int number, siginfo_t* info, void* /*context*/) {
  auto const address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (auto const& range : guarded.ranges) {
    if (number == SIGABRT || address < range.begin || address >= range.end) continue;
    void* const page = reinterpret_cast<void*>(address / guarded.page * guarded.page);
    void* const made = mmap(page, guarded.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (made == MAP_FAILED) break;
    guarded.repaired = 1;
    return;
  }
  constexpr char text[] =
      "p3d: the process ends inside the MPI library, which p3d gave GPU memory to try it (comm.gpu_aware): set "
      "comm.gpu_aware = \"off\"\n";
  [[maybe_unused]] auto const written = write(STDERR_FILENO, text, sizeof(text) - 1);
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before[i], nullptr);
  if (number == SIGABRT) raise(SIGABRT);  // the other signals come again by themselves
}

/// Has accesses inside the memories repaired while the object lives.
class Guard {
public:
  explicit Guard(std::array<TrialMemory const*, 2> memories) {
    guarded.page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    guarded.repaired = 0;
    for (std::size_t i = 0; i < memories.size(); ++i) {
      auto const begin = reinterpret_cast<std::uintptr_t>(memories[i]->data);
      guarded.ranges[i] = {begin, begin + static_cast<std::uintptr_t>(trial_bytes)};
    }
    struct sigaction action {};
    action.sa_sigaction = repair;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &before[i]);
  }
  ~Guard() {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before[i], nullptr);
    guarded.ranges = {};
  }
  Guard(Guard const&) = delete;
  Guard& operator=(Guard const&) = delete;
  bool repaired() const { return guarded.repaired != 0; }
};

/// The numbers that a rank sends: small whole numbers that differ by rank.
std::vector<float> values(std::int64_t count, int rank) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(1 + static_cast<int>(i % 251) + 3 * rank);
  return out;
}

/// Completes the requests within `seconds`. If they do not complete, they and the memory must not be touched any more.
GpuTrial complete(std::vector<MPI_Request> requests, double seconds) {
  using Clock = std::chrono::steady_clock;
  auto const end = Clock::now() + std::chrono::duration<double>(seconds);
  for (int done = 0;;) {
    if (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
      return GpuTrial::error;
    if (done) return GpuTrial::works;
    if (Clock::now() > end) return GpuTrial::hangs;
    usleep(100);
  }
}

/// The result of one length: how it ended, and whether the memory holds the expected numbers.
GpuTrial verdict(GpuTrial ended, Guard const& guard, TrialMemory const& memory, std::vector<float> const& expected) {
  if (guard.repaired()) return GpuTrial::host_access;
  if (ended != GpuTrial::works) return ended;
  std::vector<float> found(expected.size());
  memory.read(found.data(), std::ssize(found) * 4);
  return found == expected ? GpuTrial::works : GpuTrial::wrong_data;
}

/// The worst result of all ranks. Collective.
GpuTrial agreed(Communicator& comm, GpuTrial mine) {
  auto worst = static_cast<std::int32_t>(mine);
  comm.all_reduce(&worst, 1, Type::int32, Reduction::max).wait();
  return static_cast<GpuTrial>(worst);
}

/// Tries all lengths. `start(count, requests)` starts the MPI calls with the first `count` elements of the memory, and
/// returns whether all of them succeeded. `expected(count)` gives the numbers that must be in `out` afterwards.
template <class Start>
GpuTrial try_lengths(Communicator& comm, TrialMemory const& in, TrialMemory const& out, double seconds,
                     std::function<std::vector<float>(std::int64_t)> const& expected, Start const& start) {
  for (auto const bytes : lengths) {
    std::int64_t const count = bytes / 4;
    auto const own = values(count, comm.rank());
    in.write(own.data(), bytes);
    if (out.data != in.data) {
      std::vector<float> const nothing(own.size(), -1.0F);
      out.write(nothing.data(), bytes);
    }
    comm.barrier().wait();
    GpuTrial ended = GpuTrial::error;
    Guard const guard({&in, &out});
    blocking("MPI calls that try GPU memory", comm.name(), [&] {
      std::vector<MPI_Request> requests;
      if (start(static_cast<int>(count), requests)) ended = complete(std::move(requests), seconds);
    });
    if (auto const all = agreed(comm, verdict(ended, guard, out, expected(count))); all != GpuTrial::works) return all;
  }
  return GpuTrial::works;
}

}  // namespace

std::string_view describe(GpuTrial result) {
  switch (result) {
    case GpuTrial::works: return "tried at the start";
    case GpuTrial::wrong_data: return "a trial at the start brought wrong numbers";
    case GpuTrial::host_access: return "in a trial at the start the MPI library took GPU memory for memory of the host";
    case GpuTrial::error: return "in a trial at the start the MPI library returned an error";
    case GpuTrial::hangs: return "a trial at the start was not over in time";
  }
  return "";
}

GpuTrial try_messages(Communicator& comm, TrialMemory const& in, TrialMemory const& out, double seconds) {
  int const p = comm.size(), next = (comm.rank() + 1) % p, last = (comm.rank() + p - 1) % p;
  if (p == 1) return GpuTrial::works;
  return try_lengths(
      comm, in, out, seconds, [&](std::int64_t count) { return values(count, last); },
      [&](int count, std::vector<MPI_Request>& requests) {
        requests.assign(2, MPI_REQUEST_NULL);
        return MPI_Irecv(out.data, count, MPI_FLOAT, last, tag, comm.mpi(), &requests[0]) == MPI_SUCCESS &&
               MPI_Isend(in.data, count, MPI_FLOAT, next, tag, comm.mpi(), &requests[1]) == MPI_SUCCESS;
      });
}

GpuTrial try_sums(Communicator& comm, TrialMemory const& inout, double seconds) {
  int const p = comm.size();
  if (p == 1) return GpuTrial::works;
  auto const sum = [&](std::int64_t count) {
    std::vector<float> out(static_cast<std::size_t>(count));  // sums of whole numbers are exact in any order
    for (int r = 0; r < p; ++r) {
      auto const one = values(count, r);
      std::transform(out.begin(), out.end(), one.begin(), out.begin(), [](float a, float b) { return a + b; });
    }
    return out;
  };
  return try_lengths(comm, inout, inout, seconds, sum, [&](int count, std::vector<MPI_Request>& requests) {
    requests.assign(1, MPI_REQUEST_NULL);
    return MPI_Iallreduce(MPI_IN_PLACE, inout.data, count, MPI_FLOAT, MPI_SUM, comm.mpi(), &requests[0]) == MPI_SUCCESS;
  });
}

}  // namespace p3d::comm
