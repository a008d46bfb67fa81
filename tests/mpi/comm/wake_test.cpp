// SPDX-License-Identifier: Apache-2.0
// A rank sleeps while it waits, and the rank that it waits for wakes it. Sleeps last 30 s here unless somebody ends
// them, so a wake-up that is missing is seen whatever else the machine does. Rank 1 sleeps; rank 0 comes later.

#include <p3d/base/timer.hpp>
#include <p3d/comm/all_reduce.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/wait.hpp>

#include <support/mpi_main.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace {

using namespace p3d;
using comm::Communicator;
using comm::Type;
using Message = Communicator::Message;

constexpr double longest = 10.0;         ///< seconds that a wait with a wake-up lasts at most
constexpr std::int64_t large = 1 << 14;  ///< numbers of a message that an MPI does not send before it is received

class Wake : public ::testing::Test {
protected:
  void SetUp() override {
    comm::open_node_memory(4096);
    if (comm::SharedBuffer(64).data() == nullptr) GTEST_SKIP() << "without shared memory nobody is woken";
    // An MPI connects two ranks at their first message, and sends it some time after the send has returned.
    if (int const me = world.rank(); me < 2) {
      auto arrives = world.recv(in.data(), large, Type::int64, 1 - me, 0);
      world.send(out.data(), large, Type::int64, 1 - me, 0).wait();
      arrives.wait();
    }
    world.barrier().wait();
  }

  /// Calls `waits` on rank 1, which sleeps in it, and `comes` on rank 0 some time later.
  void expect_wake_up(std::function<void()> const& waits, std::function<void()> const& comes) {
    base::Stopwatch watch;
    if (world.rank() == 0) {
      ::usleep(200000);
      comes();
    } else if (world.rank() == 1) {
      auto const before = comm::wait_policy();
      auto sleepy = before;
      sleepy.spins = 20;
      sleepy.yields = 0;
      sleepy.sleep_min_us = sleepy.sleep_max_us = sleepy.woken_max_us = 30000000;
      comm::set_wait_policy(sleepy);
      waits();
      comm::set_wait_policy(before);
    }
    EXPECT_LT(watch.seconds(), longest);
    world.barrier().wait();
  }

  Communicator world = Communicator::world();
  std::vector<std::int64_t> out = std::vector<std::int64_t>(large, world.rank());
  std::vector<std::int64_t> in = std::vector<std::int64_t>(large, -1);
};

TEST_F(Wake, AReceiverIsWokenByTheSend) {
  for (std::int64_t const count : {std::int64_t{1}, large}) {
    expect_wake_up([&] { world.recv(in.data(), count, Type::int64, 0, 1).wait(); },
                   [&] { world.send(out.data(), count, Type::int64, 1, 1).wait(); });
    if (world.rank() == 1) {
      EXPECT_EQ(in[static_cast<std::size_t>(count) - 1], 0);
    }
  }
}

TEST_F(Wake, ASenderIsWokenByTheReceive) {
  expect_wake_up([&] { world.send(out.data(), large, Type::int64, 0, 2).wait(); },
                 [&] { world.recv(in.data(), large, Type::int64, 1, 2).wait(); });
}

TEST_F(Wake, PairsAndExchanges) {
  int const peer = 1 - world.rank();
  auto const pair = [&] {
    auto [first, second] = world.start_pair(Message{true, out.data(), 1, Type::int64, peer, 3, {}},
                                            Message{false, in.data(), 1, Type::int64, peer, 3, {}});
    second.wait();
    first.wait();
  };
  expect_wake_up(pair, pair);
  auto two = world.split(world.rank() < 2 ? 0 : 1, world.rank(), "two");
  auto const exchange = [&] {
    two.exchange({{out.data(), large, peer}}, {{in.data(), large, peer}}, Type::int64, 4).wait();
  };
  expect_wake_up(exchange, exchange);
  auto ring = two.ring(false, "ring");
  auto const neighbours = [&] {
    auto requests = ring.exchange_with_neighbours({Message{true, out.data(), 1, Type::int64, peer, 5, {}},
                                                   Message{false, in.data(), 1, Type::int64, peer, 5, {}}});
    comm::wait_all(requests);
  };
  expect_wake_up(neighbours, neighbours);
}

TEST_F(Wake, ASumByShares) {
  auto two = world.split(world.rank() < 2 ? 0 : 1, world.rank(), "sums");
  two.prepare({.algorithm = comm::AllReduce::shared});
  auto const sum = [&] { two.all_reduce(out.data(), large, Type::int64, comm::Reduction::sum).wait(); };
  expect_wake_up(sum, sum);
}

}  // namespace
