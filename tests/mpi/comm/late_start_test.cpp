// SPDX-License-Identifier: Apache-2.0
// Operations that begin late (Place::ready): the buffer gets its numbers while it is asked for, as from a kernel that
// ends only then, so whatever begins too early, or out of order, brings other numbers.
#include <support/mpi_main.hpp>

#include <p3d/comm/large_count.hpp>

#include "all_reduce_ways.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace p3d::test {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Not ready for the first few questions, more of them on higher ranks; then it writes what is to travel.
class Kernel {
public:
  Kernel(Numbers& buffer, Numbers values, int questions)
      : buffer_(&buffer), values_(std::move(values)), left_(questions) {}
  Place place() {
    return {Memory::host, nullptr, [this] {
              EXPECT_FALSE(done_) << "asked again after it was ready";
              if (left_-- > 0) return false;
              std::copy(values_.begin(), values_.end(), buffer_->begin());
              return done_ = true;
            }};
  }
  bool done() const { return done_; }

private:
  Numbers* buffer_;
  Numbers values_;
  int left_;
  bool done_ = false;
};

class LateStart : public AllReduceWays {
protected:
  int const questions = 3 + 2 * me;
  Numbers filled(std::int64_t value) const { return Numbers(5, value); }
  Numbers sum_of(std::int64_t each) const { return filled(p * each + p * (p - 1) / 2); }
};
INSTANTIATE_TEST_SUITE_P(Ways, LateStart,
                         ::testing::Values(Way{AllReduce::mpi, 0}, Way{AllReduce::ring, 0}, Way{AllReduce::shared, 0},
                                           Way{AllReduce::tree, 0}, Way{AllReduce::hierarchical, 2}),
                         [](auto const& info) { return name(info.param); });

TEST_P(LateStart, AllReducesBeginInOrder) {
  // The first is late on even ranks, the third on odd ones, the second on none.
  Numbers a = filled(-1), b = filled(200 + me), c = filled(-1);
  Numbers const first = filled(100 + me), third = filled(300 + me);
  Kernel slow_a(a, first, questions), slow_c(c, third, questions);
  bool const even = me % 2 == 0;
  if (!even) a = first;
  if (even) c = third;
  auto const reduce = [&](Numbers& x, Place place) {
    return world.all_reduce(x.data(), 5, Type::int64, Reduction::sum, place);
  };
  Request requests[] = {reduce(a, even ? slow_a.place() : Place()), reduce(b, {}),
                        reduce(c, even ? Place() : slow_c.place())};
  if (p > 1 && even) {
    EXPECT_FALSE(slow_a.done());
    EXPECT_TRUE(requests[1].active()) << "behind the first";
  }
  requests[2].wait();
  requests[1].wait();
  requests[0].wait();
  if (p == 1) return;
  EXPECT_EQ(a, sum_of(100));
  EXPECT_EQ(b, sum_of(200));
  EXPECT_EQ(c, sum_of(300));
}

TEST_P(LateStart, SharesOfRanks) {
  std::vector<std::int64_t> bounds{0};
  for (int r = 0; r < p; ++r) bounds.push_back(bounds.back() + r + 1);
  auto const n = static_cast<std::size_t>(bounds.back()), begin = static_cast<std::size_t>(bounds[me]);
  for (std::int64_t most : {0, 2}) {  // elements a call
    set_max_count_per_call(most);
    Numbers x(n, -1);
    Kernel writes(x, Numbers(n, 10 + me), questions);
    world.reduce_scatter(x.data(), bounds, Type::int64, Reduction::sum, writes.place()).wait();
    if (p == 1) continue;
    for (std::size_t i = begin; i < begin + me + 1; ++i) EXPECT_EQ(x[i], 10 * p + p * (p - 1) / 2);
    Numbers y(n, -1), own(n, -2);
    std::fill_n(own.begin() + static_cast<std::ptrdiff_t>(begin), me + 1, 7 * me);
    Kernel gives(y, own, questions);
    world.all_gather(y.data(), bounds, Type::int64, gives.place()).wait();
    for (int r = 0; r < p; ++r) {
      for (auto i = bounds[r]; i < bounds[r + 1]; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], 7 * r);
    }
  }
  set_max_count_per_call(0);
}

TEST_P(LateStart, BroadcastsAndGathers) {
  for (int root = 0; root < p; ++root) {
    Numbers x = filled(-1);
    Kernel writes(x, filled(root + 40), questions);
    auto broadcast = world.broadcast(x.data(), 5, Type::int64, root, me == root ? writes.place() : Place());
    Numbers all(static_cast<std::size_t>(p));
    std::int64_t const mine = me + root;
    auto gather = world.all_gather(&mine, all.data(), 1, Type::int64);
    auto barrier = world.barrier();
    barrier.wait();
    gather.wait();
    broadcast.wait();
    if (p > 1) {
      EXPECT_EQ(x, filled(root + 40));
    }
    for (int r = 0; r < p; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r + root);
  }
}

TEST_P(LateStart, MessagesRoundTheRing) {
  int const right = (me + 1) % p, left = (me + p - 1) % p;
  Numbers in[3] = {filled(-1), filled(-1), filled(-1)}, out[3] = {filled(-1), filled(10 + me), filled(-1)};
  Kernel first(out[0], filled(me), questions), third(out[2], filled(20 + me), 2 * questions);
  Numbers cleared = filled(-1);
  Kernel reads(cleared, filled(-2), questions);  // a kernel that has still to read what the message overwrites
  std::vector<Request> requests;
  for (int k = 0; k < 3; ++k)
    requests.push_back(world.recv(in[k].data(), 5, Type::int64, left, 5, k == 1 ? reads.place() : Place()));
  for (int k = 0; k < 3; ++k)
    requests.push_back(world.send(out[k].data(), 5, Type::int64, right, 5,
                                  k == 0   ? first.place()
                                  : k == 2 ? third.place()
                                           : Place()));
  if (p > 1) {
    EXPECT_FALSE(first.done());
  }
  wait_all(requests);
  for (int k = 0; k < 3; ++k) EXPECT_EQ(in[k], filled(10 * k + left)) << k;
  EXPECT_EQ(cleared, filled(-2));
}

TEST_P(LateStart, ExchangesBetweenAll) {
  Numbers in(static_cast<std::size_t>(p), -1), out(static_cast<std::size_t>(p), -1), values;
  for (int r = 0; r < p; ++r) values.push_back(100 * me + r);
  Kernel writes(out, values, questions);
  std::vector<Communicator::Part> sends, receives;
  for (int r = 0; r < p; ++r) {
    if (r == me) continue;
    sends.push_back({&out[static_cast<std::size_t>(r)], 1, r});
    receives.push_back({&in[static_cast<std::size_t>(r)], 1, r});
  }
  world.exchange(sends, receives, Type::int64, 8, writes.place()).wait();
  for (int r = 0; r < p; ++r) {
    if (r != me) {
      EXPECT_EQ(in[static_cast<std::size_t>(r)], 100 * r + me);
    }
  }
}

TEST_P(LateStart, HoldsUpNobodyElse) {
  auto other = Communicator::world();
  Numbers slow = filled(-1), quick = filled(me);
  bool open = false;
  auto const ready = [&] {
    if (open) std::fill(slow.begin(), slow.end(), me);
    return open;
  };
  auto late = world.all_reduce(slow.data(), 5, Type::int64, Reduction::sum, {Memory::host, nullptr, ready});
  other.all_reduce(quick.data(), 5, Type::int64, Reduction::sum).wait();
  Numbers in = filled(-1);
  auto incoming = world.recv(in.data(), 5, Type::int64, (me + p - 1) % p, 3);
  world.send(quick.data(), 5, Type::int64, (me + 1) % p, 3).wait();
  incoming.wait();  // messages are no collectives
  EXPECT_EQ(in, sum_of(0));
  EXPECT_EQ(late.active(), p > 1);
  open = true;
  late.wait();
  if (p > 1) {
    EXPECT_EQ(slow, sum_of(0));
  }
}

// MPI counts the barrier before it among the collectives of the communicator.
TEST_P(LateStart, ADuplicateComesAfterIt) {
  auto parent = Communicator::world();
  Numbers x = filled(-1);
  Kernel writes(x, filled(me), me % 2 == 0 ? 40 : 0);
  auto late = parent.all_reduce(x.data(), 5, Type::int64, Reduction::sum, writes.place());
  auto const copy = Communicator(parent.mpi(), "copy");
  if (p > 1) {
    EXPECT_TRUE(writes.done());
  }
  late.wait();
  if (p > 1) {
    EXPECT_EQ(x, sum_of(0));
  }
}

// One rank alone: its peers would wait for the rest of the run.
TEST(LateStartOfOneRank, IsNeverTouchedAfterItWasGivenUp) {
  auto world = Communicator::world();
  int questions = 0;
  std::int64_t in = -1, out = world.rank(), more = -1;
  auto const never = [&] {
    ++questions;
    return false;
  };
  try {
    auto const given_up = world.recv(&more, 1, Type::int64, world.rank(), 9, {Memory::host, nullptr, never});
    EXPECT_TRUE(given_up.active());
    EXPECT_GT(questions, 0);
    throw std::runtime_error("an error");
  } catch (std::runtime_error const&) {
  }
  int const asked = questions;
  auto incoming = world.recv(&in, 1, Type::int64, world.rank(), 9);
  world.send(&out, 1, Type::int64, world.rank(), 9).wait();
  incoming.wait();
  EXPECT_EQ(questions, asked);
  EXPECT_EQ(in, world.rank());
  EXPECT_EQ(more, -1);
}

}  // namespace
}  // namespace p3d::test
