// A program that must fail: comm_failure CASE[:ALGORITHM of all-reduces]. The last rank misbehaves; comm.timeout_s is 2
// s.
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>

using namespace p3d;

namespace {

void prepare(comm::Communicator& tp, std::string const& algorithm) {
  if (algorithm.empty()) return;
  comm::open_node_memory();
  if (algorithm == "hierarchical") comm::set_ranks_per_node(2);
  for (auto const a : {comm::AllReduce::shared, comm::AllReduce::ring, comm::AllReduce::hierarchical}) {
    if (algorithm == comm::to_string(a)) tp.prepare({a, true});
  }
  if (tp.describe_all_reduce() != algorithm) throw std::runtime_error("no such algorithm: " + algorithm);
}

void run(std::string const& name, std::string const& algorithm) {
  auto policy = comm::wait_policy();
  policy.timeout_s = 2.0;
  comm::set_wait_policy(policy);
  auto tp = comm::Communicator(MPI_COMM_WORLD, "tp");
  prepare(tp, algorithm);
  int const last = tp.size() - 1;
  bool const bad = tp.rank() == last;
  std::fputs(fmt::format("pid {}\n", static_cast<long>(getpid())).c_str(), stdout);
  std::fflush(stdout);
  std::int64_t value = 1;
  auto reduce = [&](comm::Communicator& c) { c.all_reduce(&value, 1, comm::Type::int64, comm::Reduction::sum).wait(); };
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
  } else if (bad) {
    if (name == "absent" || name == "yields") sleep(60);
    if (name == "stopped") raise(SIGSTOP);
    if (name == "killed") raise(SIGKILL);
    if (name == "thrown") throw std::runtime_error("a fault on the last rank");
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
  try {
    comm::Environment environment(argc, argv);
    if (name == "unwound") {  // nobody catches inside: the environment must end the others
      comm::Communicator world = comm::Communicator::world();
      if (world.rank() == world.size() - 1) throw std::runtime_error("a fault that unwinds the environment");
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
