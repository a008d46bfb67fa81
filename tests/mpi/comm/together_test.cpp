// SPDX-License-Identifier: Apache-2.0
// Messages that start together: pairs of a send and a receive, and exchanges with the neighbours on a ring.

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/large_count.hpp>

#include <support/errors.hpp>
#include <support/mpi_main.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace p3d;
using comm::Communicator;
using comm::Place;
using comm::Request;
using comm::Type;
using Message = Communicator::Message;
using Numbers = std::vector<std::int64_t>;

class Together : public ::testing::Test {
protected:
  Communicator world = Communicator::world();
  int const me = world.rank(), p = world.size();
  int const above = (me + 1) % p, below = (me + p - 1) % p;

  Message to(Numbers& buffer, int peer, int tag, Place place = {}) const {
    return {true, buffer.data(), std::ssize(buffer), Type::int64, peer, tag, std::move(place)};
  }
  Message from(Numbers& buffer, int peer, int tag, Place place = {}) const {
    return {false, buffer.data(), std::ssize(buffer), Type::int64, peer, tag, std::move(place)};
  }
  Numbers numbers(int rank, int message) const { return Numbers(1000, 100 * rank + message); }
};

/// Is ready after so many questions.
Place late(int questions) {
  auto left = std::make_shared<int>(questions);
  Place place;
  place.ready = [left] { return --*left < 0; };
  return place;
}

// The peer of a pair may use a pair, or a send and a receive, in any order.
TEST_F(Together, PairsMeetAnyCalls) {
  if (p % 2 != 0) return;
  int const peer = me ^ 1;
  for (int way : {0, 1, 2}) {
    Numbers out = numbers(me, way), in(1000, -1);
    int completed = 0;
    if (me % 2 == 0 || way == 0) {
      auto receive = from(in, peer, 1);
      receive.completions.push_back({[&] { ++completed; }, {}});
      auto [first, second] = way == 2 ? world.start_pair(std::move(receive), to(out, peer, 1))
                                      : world.start_pair(to(out, peer, 1), std::move(receive));
      second.wait();
      EXPECT_TRUE(first.test());
      EXPECT_EQ(completed, 1);
    } else {
      auto receive = world.recv(in.data(), 1000, Type::int64, peer, 1);
      world.send(out.data(), 1000, Type::int64, peer, 1).wait();
      receive.wait();
    }
    EXPECT_EQ(in, numbers(peer, way));
  }
}

#if MPI_VERSION >= 4
// One call: a send that has long arrived is over when the receive is.
TEST_F(Together, PairsAreOneCall) {
  if (p % 2 != 0) return;
  int const peer = me ^ 1;
  Numbers out(1, me), in(1, -1), go(1, 0);
  if (me % 2 == 0) {
    auto [sent, received] = world.start_pair(to(out, peer, 1), from(in, peer, 1));
    world.recv(go.data(), 1, Type::int64, peer, 2).wait();
    for (int k = 0; k < 100; ++k) EXPECT_FALSE(sent.test());
    world.send(go.data(), 1, Type::int64, peer, 3).wait();
    sent.wait();
    EXPECT_TRUE(received.test());
  } else {
    world.recv(in.data(), 1, Type::int64, peer, 1).wait();
    world.send(go.data(), 1, Type::int64, peer, 2).wait();
    world.recv(go.data(), 1, Type::int64, peer, 3).wait();
    world.send(out.data(), 1, Type::int64, peer, 1).wait();
  }
  EXPECT_EQ(in, Numbers(1, peer));
}
#endif

// A pair that is not ready holds up what follows to the rank and from it, and nothing else.
TEST_F(Together, PairsKeepTheOrderOfBothLines) {
  if (p == 1) return;
  for (int questions : {0, 1, 50}) {
    Numbers out[4], in[4];
    for (int k = 0; k < 4; ++k) {
      out[k] = numbers(me, k);
      in[k].assign(1000, -1);
    }
    if (p % 2 != 0 && me + 1 == p) break;
    int const peer = me ^ 1;
    std::vector<Request> requests;
    auto const pair = [&](int k, Place place) {
      auto [a, b] = world.start_pair(to(out[k], peer, 7, std::move(place)), from(in[k], peer, 7));
      requests.push_back(std::move(a));
      requests.push_back(std::move(b));
    };
    requests.push_back(world.recv(in[0].data(), 1000, Type::int64, peer, 7, late(questions)));
    requests.push_back(world.send(out[0].data(), 1000, Type::int64, peer, 7));
    pair(1, {});
    pair(2, late(questions));
    requests.push_back(world.recv(in[3].data(), 1000, Type::int64, peer, 7));
    requests.push_back(world.send(out[3].data(), 1000, Type::int64, peer, 7));
    for (auto r = requests.rbegin(); r != requests.rend(); ++r) r->wait();
    for (int k = 0; k < 4; ++k) EXPECT_EQ(in[k], numbers(peer, k)) << "message " << k;
  }
}

TEST_F(Together, LongMessagesOfAPairGoInParts) {
  if (p % 2 != 0) return;
  comm::set_max_count_per_call(300);
  Numbers out = numbers(me, 0), in(1000, -1);
  auto [first, second] = world.start_pair(to(out, me ^ 1, 1), from(in, me ^ 1, 1));
  first.wait();
  second.wait();
  comm::set_max_count_per_call(0);
  EXPECT_EQ(in, numbers(me ^ 1, 0));
}

TEST_F(Together, NeighboursExchange) {
  if (p == 1) return;
  for (bool periodic : {false, true}) {
    if (periodic && p == 2) continue;
    auto ring = world.ring(periodic, "ring");
    bool const has_above = periodic || me + 1 < p, has_below = periodic || me > 0;
    auto const before = ring.accounting().sent.messages;
    // Several rounds are under way at once: messages up, up and down (late on one rank), none, down.
    Numbers up[2], down[2], in_up[2], in_down[2];
    for (int k = 0; k < 2; ++k) {
      up[k] = numbers(me, k);
      down[k] = numbers(me, 10 + k);
      in_up[k].assign(1000, -1);
      in_down[k].assign(1000, -1);
    }
    std::vector<Request> requests;
    auto const round = [&](int up_number, int down_number, int questions) {
      std::vector<Message> messages;
      if (up_number >= 0 && has_above) messages.push_back(to(up[up_number], above, 0, late(questions)));
      if (up_number >= 0 && has_below) messages.push_back(from(in_up[up_number], below, 0));
      if (down_number >= 0 && has_below) messages.push_back(to(down[down_number], below, 0));
      if (down_number >= 0 && has_above) messages.push_back(from(in_down[down_number], above, 0, late(questions / 2)));
      auto const number = messages.size();
      auto started = ring.exchange_with_neighbours(std::move(messages));
      EXPECT_EQ(started.size(), std::max<std::size_t>(1, number));
      for (auto& r : started) requests.push_back(std::move(r));
    };
    round(0, -1, 0);
    round(1, 0, me == 0 ? 40 : 0);
    round(-1, -1, 0);
    round(-1, 1, 3);
    for (auto r = requests.rbegin(); r != requests.rend(); ++r) r->wait();
    for (int k = 0; k < 2; ++k) {
      EXPECT_EQ(in_up[k], has_below ? numbers(below, k) : Numbers(1000, -1)) << "round with message " << k;
      EXPECT_EQ(in_down[k], has_above ? numbers(above, 10 + k) : Numbers(1000, -1)) << "round with message " << k;
    }
    EXPECT_EQ(ring.accounting().sent.messages - before, 2 * 8000 * ((has_above ? 1 : 0) + (has_below ? 1 : 0)));
  }
}

TEST_F(Together, RefusesWhatAreNoNeighbours) {
  if (p < 4) return;
  auto ring = world.ring(false, "ring");
  Numbers out = numbers(me, 0);
  std::vector<Message> far{to(out, (me + 2) % p, 0)};
  test::expect_error([&] { ring.exchange_with_neighbours(far); }, "messages go to neighbours on the ring");
  std::vector<Message> two(2, to(out, me > 0 ? me - 1 : 1, 0));
  test::expect_error([&] { ring.exchange_with_neighbours(two); }, "one message to, and one from, each neighbour");
  test::expect_error([&] { world.start_pair(to(out, 0, 0), to(out, 0, 0)); }, "a pair is a send and a receive");
}

}  // namespace
