// SPDX-License-Identifier: Apache-2.0
// A program that must fail: comm_failure CASE[:ALGORITHM of all-reduces]. The last rank misbehaves; comm.timeout_s is 2
// s. With CASE = MPI_Cart_create, or another of the calls below, it stops inside that call.
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/comm/mesh.hpp>
#include <p3d/comm/wait.hpp>

#include <support/fake_nccl.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

using namespace p3d;

namespace {

std::string call_to_stop_in;  // "" on every rank but the last

void stop_in(char const* call) {
  if (call_to_stop_in == call) raise(SIGSTOP);
}

}  // namespace

// MPI's own interface for tools: a call comes here first.
extern "C" {
int MPI_Init_thread(int* argc, char*** argv, int wanted, int* provided) {
  stop_in("MPI_Init_thread");
  return PMPI_Init_thread(argc, argv, wanted, provided);
}
int MPI_Allreduce(void const* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  stop_in("MPI_Allreduce");
  return PMPI_Allreduce(in, out, count, type, op, comm);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part) {
  stop_in("MPI_Comm_split_type");
  return PMPI_Comm_split_type(comm, type, key, info, part);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  stop_in("MPI_Comm_dup");
  return PMPI_Comm_dup(comm, copy);
}
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* copy, MPI_Request* request) {
  stop_in("MPI_Comm_idup");
  return PMPI_Comm_idup(comm, copy, request);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  stop_in("MPI_Comm_split");
  return PMPI_Comm_split(comm, color, key, part);
}
int MPI_Cart_create(MPI_Comm comm, int n, int const* sizes, int const* periods, int reorder, MPI_Comm* cart) {
  stop_in("MPI_Cart_create");
  return PMPI_Cart_create(comm, n, sizes, periods, reorder, cart);
}
int MPI_Cart_sub(MPI_Comm comm, int const* remain, MPI_Comm* part) {
  stop_in("MPI_Cart_sub");
  return PMPI_Cart_sub(comm, remain, part);
}
int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
  stop_in("MPI_Win_allocate_shared");
  return PMPI_Win_allocate_shared(size, unit, info, comm, base, window);
}
int MPI_Win_free(MPI_Win* window) {
  stop_in("MPI_Win_free");
  return PMPI_Win_free(window);
}
int MPI_Finalize() {
  stop_in("MPI_Finalize");
  return PMPI_Finalize();
}
}

namespace {

/// MPI's own start is bounded as shortly only where it is the case: Open MPI takes longer on a loaded machine.
void set_timeout(bool start_too = false) {
  auto policy = comm::wait_policy();
  policy.timeout_s = 2.0;
  if (start_too) policy.start_s = 2.0;
  comm::set_wait_policy(policy);
}

void say_who() {
  std::fputs(fmt::format("pid {}\n", static_cast<long>(getpid())).c_str(), stdout);
  std::fflush(stdout);
}

/// What a run does before its first step.
void start_up() {
  auto world = comm::Communicator::world();
  auto const half = world.split(world.rank() % 2, 0, "half");
  comm::Mesh mesh(world, comm::plain_shape({{"tp", 2}, {"dp", world.size() / 2}}), {{"tp"}, {"dp"}});
  mesh.prepare({comm::AllReduce::shared});
}

void prepare(comm::Communicator& tp, std::string const& algorithm) {
  if (algorithm.empty()) return;
  comm::open_node_memory();
  if (algorithm == "hierarchical") comm::set_ranks_per_node(2);
  for (auto const a : {comm::AllReduce::shared, comm::AllReduce::ring, comm::AllReduce::hierarchical}) {
    if (algorithm == comm::to_string(a)) tp.prepare({a});
  }
  if (tp.describe_all_reduce() != algorithm) throw std::runtime_error("no such algorithm: " + algorithm);
}

/// The last rank's NCCL goes wrong without a word; aborts are told. Never returns well.
void run_nccl(comm::Communicator& tp, bool at_start) {
  bool const bad = tp.rank() == tp.size() - 1;
  auto const fake = std::make_shared<test::FakeNccl>(tp.mpi());
  fake->on_abort = [] { std::fputs("NCCL was aborted\n", stderr); };
  fake->never_starts = at_start;
  comm::detail::set_nccl_api(fake);
  comm::Communicator gpus(MPI_COMM_WORLD, "gpus");
  gpus.prepare({.algorithm = comm::AllReduce::mpi, .fixed_order = false, .nccl = true});
  auto const stream = fake->caller_stream();
  float value = 1.0F;
  auto const reduce = [&] {
    gpus.all_reduce(&value, 1, comm::Type::float32, comm::Reduction::sum, {comm::Memory::device, stream}).wait();
  };
  reduce();
  comm::set_activity(12, "2F0");
  fake->loses_work = bad;
  reduce();
}

void run(std::string const& name, std::string const& algorithm) {
  set_timeout();
  auto tp = comm::Communicator(MPI_COMM_WORLD, "tp");
  prepare(tp, algorithm);
  int const last = tp.size() - 1;
  bool const bad = tp.rank() == last;
  say_who();
  std::int64_t value = 1;
  auto reduce = [&](comm::Communicator& c) { c.all_reduce(&value, 1, comm::Type::int64, comm::Reduction::sum).wait(); };
  if (name.starts_with("nccl")) return run_nccl(tp, name == "nccl_start");
  reduce(tp);
  reduce(tp);
  comm::set_activity(12, "2F0");
  if (name == "yields") {  // yields that would last for ever, as on a loaded machine
    auto yielding = comm::wait_policy();
    yielding.yields = std::numeric_limits<int>::max();
    comm::set_wait_policy(yielding);
  }
  if (name == "message") {  // rank 0 receives what the last rank never sends
    if (tp.rank() == 0) tp.recv(&value, 1, comm::Type::int64, last, 0).wait();
  } else if (name == "both") {  // two groups are stuck in different places
    auto half = tp.split(tp.rank() % 2, 0, tp.rank() % 2 == 0 ? "even" : "odd");
    if (bad) reduce(tp);
    reduce(half);
  } else if (name == "scatters" || name == "gathers") {  // the last rank does not come
    if (bad) sleep(60);
    std::vector<float> buffer(static_cast<std::size_t>(100000 * tp.size()));
    std::vector<std::int64_t> bounds;
    for (int r = 0; r <= tp.size(); ++r) bounds.push_back(std::int64_t{100000} * r);
    name == "scatters" ? tp.reduce_scatter(buffer.data(), bounds, comm::Type::float32, comm::Reduction::sum).wait()
                       : tp.all_gather(buffer.data(), bounds, comm::Type::float32).wait();
  } else if (name == "late") {  // the last rank's device never ends
    tp.all_reduce(&value, 1, comm::Type::int64, comm::Reduction::sum,
                  {comm::Memory::host, nullptr, [bad] { return !bad; }})
        .wait();
  } else if (bad) {
    if (name == "absent" || name == "yields") sleep(60);
    if (name == "stopped") raise(SIGSTOP);
    if (name == "killed") raise(SIGKILL);
    if (name == "thrown") throw std::runtime_error("an error on the last rank");
    if (name == "working") {  // late, but within the budget
      sleep(1);
    }
  }
  reduce(tp);
  comm::set_activity(13, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  std::string const argument = argc > 1 ? argv[1] : "";
  auto const colon = std::min(argument.find(':'), argument.size());
  auto const name = argument.substr(0, colon);
  auto const algorithm = colon < argument.size() ? argument.substr(colon + 1) : std::string();
  bool const starts = name.starts_with("MPI_");
  if (starts) {
    set_timeout(name == "MPI_Init_thread");
    say_who();
    if (auto const launched = comm::launch(); launched.rank == launched.size - 1) call_to_stop_in = name;
  }
  try {
    comm::Environment environment(argc, argv);
    if (starts) {
      start_up();
      return 0;
    }
    if (name == "unwound") {  // nobody catches inside: the environment must end the others
      comm::Communicator world = comm::Communicator::world();
      if (world.rank() == world.size() - 1) throw std::runtime_error("an error that unwinds the environment");
      std::fputs("waiting\n", stdout);
      world.barrier().wait();
      return 0;
    }
    try {
      run(name, algorithm);
    } catch (std::exception const& e) {
      base::error_here(e.what());
      comm::abort_all(static_cast<int>(base::ExitCode::run_failed));
    }
  } catch (std::exception const&) {
    std::fputs("unreachable\n", stderr);
  }
  return 0;
}
