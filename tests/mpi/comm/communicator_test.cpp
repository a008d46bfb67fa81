// SPDX-License-Identifier: Apache-2.0
// Ownership, splitting, accounting, requests, the wait policy, MPI errors and "who is where".
#include <p3d/base/timer.hpp>

#include <support/mpi_main.hpp>

#include <algorithm>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace p3d::comm;

namespace {

std::size_t lines_with(std::string const& text, std::string const& word) {
  std::istringstream in(text);
  std::size_t n = 0;
  for (std::string line; std::getline(in, line);) n += line.find(word) != std::string::npos ? 1 : 0;
  return n;
}

// MPICH takes SIGUSR1 for itself; a user who sends one early wants the process to do what it always does.
TEST(Communicator, TheUsersSignalIsNotMpis) {
  struct sigaction now {};
  ASSERT_EQ(sigaction(SIGUSR1, nullptr, &now), 0);
  EXPECT_EQ(now.sa_flags & SA_SIGINFO, 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(Communicator, IsADuplicateWithAName) {
  auto a = Communicator::world();
  auto b = Communicator(a.mpi(), "copy");
  int result = 0;
  MPI_Comm_compare(a.mpi(), b.mpi(), &result);
  EXPECT_EQ(result, MPI_CONGRUENT);
  char name[MPI_MAX_OBJECT_NAME];
  int length = 0;
  MPI_Comm_get_name(b.mpi(), name, &length);
  EXPECT_STREQ(name, "copy");
  EXPECT_EQ(b.name(), "copy");
  EXPECT_EQ(Communicator::self().size(), 1);
  auto c = std::move(b);
  EXPECT_FALSE(b.valid());  // NOLINT: moved from
  EXPECT_TRUE(c.valid());
  EXPECT_EQ(c.size(), a.size());
}

TEST(Communicator, SplitsByColourAndKey) {
  auto world = Communicator::world();
  int const me = world.rank();
  auto half = world.split(me % 2, -me, "parity");
  ASSERT_TRUE(half.valid());
  int const members = (world.size() + 1 - me % 2) / 2;
  EXPECT_EQ(half.size(), members);
  EXPECT_EQ(half.rank(), members - 1 - me / 2);  // the key turns the order round
  auto first = world.split(me == 0 ? 3 : -1, 0, "first");
  EXPECT_EQ(first.valid(), me == 0);
  if (me > 0) {
    EXPECT_THROW(first.rank(), p3d::base::Error);
  }
}

TEST(Communicator, CountsOperationsBytesAndWaiting) {
  auto world = Communicator::world();
  std::vector<float> x(10);
  world.all_reduce(x.data(), 10, Type::float32, Reduction::sum).wait();
  world.broadcast(x.data(), 5, Type::float32, 0).wait();
  auto const seen = world.accounting();
  bool const alone = world.size() == 1;  // nothing travels
  EXPECT_EQ(seen.operations, alone ? 0 : 2);
  EXPECT_EQ(seen.bytes, alone ? 0 : 60);
  EXPECT_EQ(seen.wait_seconds > 0.0, !alone);
  world.reset_accounting();
  EXPECT_EQ(world.accounting().operations, 0);
}

TEST(Communicator, NamesTheCallOfAnMpiError) {
  auto world = Communicator::world();
  double x = 0.0;
  try {
    world.send(&x, 1, Type::float64, world.size() + 7, 0).wait();
    ADD_FAILURE() << "there is no such rank";
  } catch (p3d::base::Error const& e) {
    EXPECT_NE(e.text().expected.find("MPI_Isend"), std::string::npos) << e.what();
    EXPECT_NE(e.text().where.find("rank " + std::to_string(world.rank())), std::string::npos) << e.what();
    EXPECT_NE(e.text().where.find("'world'"), std::string::npos) << e.what();
    EXPECT_NE(e.text().found.find("rank"), std::string::npos) << e.what();  // MPI's own text
  }
}

TEST(Request, RunsHooksOnceAndKeepsAliveUntilThen) {
  auto world = Communicator::world();
  int const right = (world.rank() + 1) % world.size();
  int const left = (world.rank() + world.size() - 1) % world.size();
  auto buffer = std::make_shared<double>(0.0);
  std::weak_ptr<double> const watch = buffer;
  double seen = -1.0;
  int runs = 0;
  double* const place = buffer.get();
  auto incoming = world.recv(place, 1, Type::float64, left, 0);
  incoming.on_complete([&, place] { seen = *place, ++runs; }, std::move(buffer));
  EXPECT_EQ(runs, 0);
  EXPECT_FALSE(watch.expired());
  double const mine = 10.0 + world.rank();
  auto outgoing = world.send(&mine, 1, Type::float64, right, 0);
  auto moved = std::move(incoming);
  EXPECT_FALSE(incoming.active());  // NOLINT: moved from
  while (!moved.test()) {
  }
  moved.wait();
  EXPECT_TRUE(moved.test());
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(seen, 10.0 + left);
  EXPECT_TRUE(watch.expired());
}

TEST(Request, AHookOnAFinishedRequestRunsAtOnce) {
  Request nothing;
  int runs = 0;
  nothing.on_complete([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(nothing.active());
  nothing.wait();
}

TEST(Request, DestroyingWaits) {
  auto world = Communicator::world();
  int const right = (world.rank() + 1) % world.size();
  int const left = (world.rank() + world.size() - 1) % world.size();
  std::int64_t in[2] = {-1, -1};
  std::int64_t const out[2] = {world.rank(), world.rank()};
  {
    auto incoming = world.recv(&in[0], 1, Type::int64, left, 0);
    auto outgoing = world.send(&out[0], 1, Type::int64, right, 0);
    auto second = world.send(&out[1], 1, Type::int64, right, 0);
    incoming = world.recv(&in[1], 1, Type::int64, left, 0);  // assignment finishes the first
    EXPECT_EQ(in[0], left);
  }
  EXPECT_EQ(in[1], left);
}

TEST(Request, AnExceptionOnItsWayDoesNotWait) {
  auto world = Communicator::world();
  auto buffer = std::make_shared<double>(0.0);
  std::weak_ptr<double> const watch = buffer;
  EXPECT_THROW(
      {
        auto never = world.recv(buffer.get(), 1, Type::float64, world.rank(), 77);  // nobody sends this
        never.on_complete({}, std::move(buffer));
        throw std::runtime_error("on its way");
      },
      std::runtime_error);
  EXPECT_FALSE(watch.expired());  // MPI might still write there
}

TEST(WaitPolicy, SpinsOnlyWithACoreForEachRank) {
  EXPECT_GT(make_wait_policy(5.0, 4, 4).spins, make_wait_policy(5.0, 8, 4).spins);
  EXPECT_EQ(make_wait_policy(5.0, 8, 4).timeout_s, 5.0);
  EXPECT_GE(node_share().ranks, 1);
  EXPECT_GE(node_share().cores, 1);
  auto broken = wait_policy();
  broken.timeout_s = 0.0;
  EXPECT_THROW(set_wait_policy(broken), p3d::base::Error);
}

// A disk that is slow on one rank: the others wait for longer than their budget, and the run goes on.
TEST(WaitPolicy, WaitsGoOnWhileARankIsAtWork) {
  auto world = Communicator::world();
  auto const before = wait_policy();
  for (int slow : {0, world.size() - 1}) {
    world.barrier().wait();
    auto policy = before;
    policy.timeout_s = 0.5;
    set_wait_policy(policy);
    p3d::base::Stopwatch watch;
    while (world.rank() == slow && watch.seconds() < 1.7) {
      progress_at("fsync of a file");
      ::usleep(1000);
    }
    std::int64_t sum = 1;
    world.all_reduce(&sum, 1, Type::int64, Reduction::sum).wait();
    EXPECT_EQ(sum, world.size());
    EXPECT_GT(watch.seconds(), 1.0);
    set_wait_policy(before);
  }
}

TEST(States, RanksInAWaitAnswer) {
  auto world = Communicator::world();
  set_activity(7, "2F0");
  if (world.rank() == 0) {  // the others wait for this rank, or are on their way there
    auto const others = static_cast<std::size_t>(world.size() - 1);
    p3d::base::Stopwatch watch;
    std::string states;
    do {
      states = collect_states(30.0);  // ends as soon as all have answered
    } while (lines_with(states, "for barrier #1 of 'world'") < others && watch.seconds() < 30.0);
    EXPECT_EQ(lines_with(states, "rank "), static_cast<std::size_t>(world.size())) << states;
    EXPECT_EQ(lines_with(states, "step 7, 2F0"), static_cast<std::size_t>(world.size())) << states;
    EXPECT_EQ(lines_with(states, "for barrier #1 of 'world'"), others) << states;
    EXPECT_EQ(lines_with(states, "not in a wait"), 1u) << states;
    EXPECT_EQ(lines_with(states, "no answer"), 0u) << states;
  }
  world.barrier().wait();
  set_activity(-1, nullptr);
}

}  // namespace
