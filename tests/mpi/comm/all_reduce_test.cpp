// SPDX-License-Identifier: Apache-2.0
// Every all-reduce algorithm, on one node and on nodes made up of fewer ranks: exact sums at awkward lengths, the order
// of summation, several requests at once, regions used again.
#include "all_reduce_ways.hpp"

#include <support/mpi_main.hpp>

#include <p3d/base/timer.hpp>
#include <p3d/comm/large_count.hpp>
#include <p3d/comm/wait.hpp>

#include <comm/message_steps.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

using namespace p3d::comm;
using namespace p3d::test;

namespace {

class AllReduces : public AllReduceWays {};
INSTANTIATE_TEST_SUITE_P(Ways, AllReduces,
                         ::testing::Values(Way{AllReduce::mpi, 0}, Way{AllReduce::ring, 0}, Way{AllReduce::tree, 0},
                                           Way{AllReduce::shared, 0}, Way{AllReduce::shared, 2},
                                           Way{AllReduce::hierarchical, 0}, Way{AllReduce::hierarchical, 1},
                                           Way{AllReduce::hierarchical, 2}, Way{AllReduce::hierarchical, 3},
                                           Way{AllReduce::automatic, 0}, Way{AllReduce::automatic, 1},
                                           Way{AllReduce::automatic, 2}),
                         [](auto const& info) { return name(info.param); });

/// Element i of the buffer that rank r contributes; small integers, so that sums are exact in every order.
template <class T>
T element(int r, std::int64_t i) {
  return static_cast<T>((r * 31 + i * 7) % 101);
}
template <class T>
T expected(int p, std::int64_t i, Reduction op) {
  T value = element<T>(0, i);
  for (int r = 1; r < p; ++r) {
    T const other = element<T>(r, i);
    value = op == Reduction::sum   ? static_cast<T>(value + other)
            : op == Reduction::max ? std::max(value, other)
                                   : std::min(value, other);
  }
  return value;
}

/// Sums `count` elements that begin at an odd place, and looks at what lies beside them too.
template <class T>
void check(Communicator& comm, Type type, std::int64_t count, Reduction op = Reduction::sum) {
  T const guard = static_cast<T>(77);
  std::vector<T> values(static_cast<std::size_t>(count) + 2, guard);
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i) + 1] = element<T>(comm.rank(), i);
  comm.all_reduce(values.data() + 1, count, type, op).wait();
  EXPECT_EQ(values.front(), guard);
  EXPECT_EQ(values.back(), guard);
  std::int64_t wrong = 0, first = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[static_cast<std::size_t>(i) + 1] == expected<T>(comm.size(), i, op)) continue;
    if (wrong++ == 0) first = i;
  }
  EXPECT_EQ(wrong, 0) << "of " << count << " elements; the first is " << first;
}

TEST_P(AllReduces, AreExactAtEveryLength) {
  // Around what goes in one piece, and over more segments than there are slots.
  for (std::int64_t const count : {0, 1, 2, 3, 7, 12, 13, 64, 65, 1000, 2047, 2049, 40001, 300007}) {
    check<float>(world, Type::float32, count);
    check<double>(world, Type::float64, count);
  }
}

TEST_P(AllReduces, CutIntoShortPieces) {
  for (std::int64_t const piece : {1, 3, 7}) {
    set_max_count_per_call(piece);
    for (std::int64_t const count : {1, 2, 5, 11, 23}) check<double>(world, Type::float64, count);
    set_max_count_per_call(0);
  }
}

TEST_P(AllReduces, OfEveryTypeAndReduction) {
  for (auto const op : {Reduction::sum, Reduction::max, Reduction::min}) {
    check<std::int32_t>(world, Type::int32, 101, op);
    check<std::int64_t>(world, Type::int64, 101, op);
    check<std::uint64_t>(world, Type::uint64, 101, op);
    check<float>(world, Type::float32, 5003, op);
    check<double>(world, Type::float64, 5003, op);
  }
}

/// Numbers whose sum depends on the order.
std::vector<float> rough(int rank, std::size_t count) {
  std::mt19937 engine(static_cast<unsigned>(1000 + rank));
  std::vector<float> out(count);
  for (auto& x : out) x = std::ldexp(static_cast<float>(engine() % 20001) - 10000.0F, static_cast<int>(engine() % 24));
  return out;
}

TEST_P(AllReduces, GiveTheSameBitsEverywhereAndAlways) {
  for (std::size_t const count : {std::size_t{5}, std::size_t{997}, std::size_t{150001}}) {
    auto const mine = rough(me, count);
    auto first = mine;
    world.all_reduce(first.data(), static_cast<std::int64_t>(count), Type::float32, Reduction::sum).wait();
    for (int repeat = 0; repeat < 3; ++repeat) {
      auto again = mine;
      world.all_reduce(again.data(), static_cast<std::int64_t>(count), Type::float32, Reduction::sum).wait();
      EXPECT_EQ(std::memcmp(first.data(), again.data(), count * sizeof(float)), 0)
          << count << " elements, repeat " << repeat;
    }
    auto root = first;
    world.broadcast(root.data(), static_cast<std::int64_t>(count), Type::float32, 0).wait();
    EXPECT_EQ(std::memcmp(first.data(), root.data(), count * sizeof(float)), 0)
        << count << " elements: other bits than rank 0";
  }
}

// On some ranks the buffer lies where the others read it; it is written anew at once, so a reader that comes late
// shows.
TEST_P(AllReduces, OfSharedBuffers) {
  constexpr std::int64_t longest = 700001;
  for (int const divisor : {1, 2, 3}) {
    SharedBuffer const shared(me % divisor == 0 ? longest * sizeof(float) : 0);
    if (p > 1) {
      EXPECT_EQ(shared.data() != nullptr, me % divisor == 0);
    }
    std::vector<float> own(shared.data() == nullptr ? longest : 0);
    auto* const values = shared.data() == nullptr ? own.data() : static_cast<float*>(shared.data());
    for (std::int64_t const count : {std::int64_t{3}, std::int64_t{5000}, std::int64_t{300007}, longest}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (std::int64_t i = 0; i < count; ++i) values[i] = element<float>(me, i + repeat);
        world.all_reduce(values, count, Type::float32, Reduction::sum).wait();
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < count; ++i)
          wrong += values[i] != expected<float>(p, i + repeat, Reduction::sum) ? 1 : 0;
        std::fill_n(values, count, -1.0F);
        EXPECT_EQ(wrong, 0) << "of " << count << " elements, repeat " << repeat << ", every " << divisor
                            << "th rank shares";
      }
    }
  }
}

TEST(SharedBuffers, MoveAndComeBack) {
  if (Communicator::world().size() == 1) GTEST_SKIP() << "one rank needs no memory";
  open_node_memory(room_for_buffers);
  void* place = nullptr;
  {
    SharedBuffer a(100000);
    place = a.data();
    ASSERT_NE(place, nullptr);
    SharedBuffer b(std::move(a));
    EXPECT_EQ(a.data(), nullptr);
    EXPECT_EQ(b.data(), place);
    static_cast<char*>(place)[99999] = 1;
    EXPECT_EQ(SharedBuffer(std::size_t{1} << 40).data(), nullptr) << "more than there is";
  }
  SharedBuffer const again(100000);
  ASSERT_EQ(again.data(), place);
  EXPECT_EQ(static_cast<char*>(place)[99999], 0);
}

TEST_P(AllReduces, SeveralAtOnce) {
  auto second = world.split(0, me, "second");
  second.prepare({GetParam().algorithm});
  std::vector<std::int64_t> const counts{70001, 1, 4096, 0, 33, 250000, 8, 8, 9};
  std::vector<std::vector<double>> values;
  std::vector<Request> requests;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    auto& v = values.emplace_back(static_cast<std::size_t>(counts[k]));
    for (std::int64_t i = 0; i < counts[k]; ++i)
      v[static_cast<std::size_t>(i)] = element<double>(me, i + static_cast<std::int64_t>(k));
    requests.push_back((k % 3 == 2 ? second : world).all_reduce(v.data(), counts[k], Type::float64, Reduction::sum));
  }
  // In another order on every rank.
  for (std::size_t k = 0; k < counts.size(); ++k) requests[(k + static_cast<std::size_t>(me)) % counts.size()].wait();
  for (std::size_t k = 0; k < counts.size(); ++k) {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < counts[k]; ++i) {
      wrong += values[k][static_cast<std::size_t>(i)] !=
                       expected<double>(p, i + static_cast<std::int64_t>(k), Reduction::sum)
                   ? 1
                   : 0;
    }
    EXPECT_EQ(wrong, 0) << "request " << k;
  }
}

// Rank 0 waits for a message that the others send only after the reduction, in which rank 0's part is still to be done.
TEST_P(AllReduces, GoOnWhileTheRankWaitsForSomethingElse) {
  std::vector<float> values(200003, 1.0F);
  auto reduction =
      world.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), Type::float32, Reduction::sum);
  std::vector<int> word(1, 0);
  if (me == 0) {
    for (int r = 1; r < p; ++r) world.recv(word.data(), 1, Type::int32, r, 9).wait();
    reduction.wait();
  } else {
    reduction.wait();
    world.send(word.data(), 1, Type::int32, 0, 9).wait();
  }
  EXPECT_EQ(std::count(values.begin(), values.end(), static_cast<float>(p)),
            static_cast<std::ptrdiff_t>(values.size()));
}

// Rank 0 has no request to wait for; the others get their sums all the same.
TEST_P(AllReduces, GoOnWhileTheRankWaitsForADisk) {
  if (world.all_reduce_algorithm(200003 * sizeof(float)) == AllReduce::mpi) GTEST_SKIP() << "MPI's";
  std::vector<float> values(200003, 1.0F);
  auto reduction =
      world.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), Type::float32, Reduction::sum);
  auto const finished = [&] { return values.back() == static_cast<float>(p) && values.front() == values.back(); };
  for (p3d::base::Stopwatch watch; me == 0 && !finished() && watch.seconds() < 30;) progress();
  EXPECT_TRUE(me > 0 || finished());
  reduction.wait();
}

// Rank 0 looks while its sum is under way, before the others begin theirs.
TEST_P(AllReduces, SayWhetherTheyAreMessages) {
  std::vector<float> values(200003, 1.0F);
  auto const bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  auto const algorithm = world.all_reduce_algorithm(bytes);
  if (p == 1 || algorithm == AllReduce::mpi) GTEST_SKIP() << "nothing, or MPI's";
  bool const messages = world.nodes() > 1 || algorithm == AllReduce::ring || algorithm == AllReduce::tree;
  auto const start = [&] {
    return world.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), Type::float32, Reduction::sum);
  };
  EXPECT_FALSE(progress());
  std::vector<int> word(1, 0);
  if (me == 0) {
    auto reduction = start();
    EXPECT_EQ(progress(), messages);
    for (int r = 1; r < p; ++r) world.send(word.data(), 1, Type::int32, r, 9).wait();
    reduction.wait();
  } else {
    world.recv(word.data(), 1, Type::int32, 0, 9).wait();
    start().wait();
  }
  EXPECT_FALSE(progress());
}

TEST_P(AllReduces, RunHooksAndCountLikeAnyOperation) {
  float value = 1.0F;
  bool ran = false;
  world.reset_accounting();
  auto request = world.all_reduce(&value, 1, Type::float32, Reduction::sum);
  request.on_complete([&] { ran = value == static_cast<float>(p); });
  while (!request.test()) {
  }
  EXPECT_TRUE(ran);
  EXPECT_EQ(world.accounting().operations, p == 1 ? 0 : 1);
  EXPECT_EQ(world.accounting().bytes, p == 1 ? 0 : 4);
}

TEST(AllReduceMemory, IsUsedAgain) {
  open_node_memory(room_for_buffers);
  auto world = Communicator::world();
  for (int i = 0; i < 80; ++i) {  // more than fits at once
    auto part = Communicator(world.mpi(), "part");
    part.prepare({AllReduce::shared});
    check<float>(part, Type::float32, 3001 + i);
  }
}

TEST(AllReduceMemory, WhenItEndsTheErrorSaysSo) {
  open_node_memory(room_for_buffers);
  auto world = Communicator::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank needs no memory";
  std::vector<Communicator> parts;
  try {
    for (int i = 0; i < 200; ++i) {
      parts.push_back(Communicator(world.mpi(), "part"));
      parts.back().prepare({AllReduce::shared});
    }
    ADD_FAILURE() << "200 regions fit";
  } catch (p3d::base::Error const& e) {
    EXPECT_NE(e.text().found.find("used up"), std::string::npos) << e.what();
    EXPECT_NE(e.text().fix.find("/dev/shm"), std::string::npos) << e.what();
  }
  check<float>(parts.front(), Type::float32, 1001);
  auto other = Communicator(world.mpi(), "other");
  other.prepare({AllReduce::automatic});  // does without
  EXPECT_EQ(other.describe_all_reduce(), "tree, ring from 32.00 KiB");
  check<float>(other, Type::float32, 1001);
}

TEST(AllReduceOrder, IsThatOfTheRanks) {
  open_node_memory(room_for_buffers);
  auto world = Communicator::world();
  int const p = world.size();
  for (std::size_t const count : {std::size_t{9}, std::size_t{70001}}) {
    std::vector<std::vector<float>> all;
    for (int r = 0; r < p; ++r) all.push_back(rough(r, count));
    auto const sum = [&](AllReduce algorithm) {
      world.prepare({algorithm});
      auto values = all[static_cast<std::size_t>(world.rank())];
      world.all_reduce(values.data(), static_cast<std::int64_t>(count), Type::float32, Reduction::sum).wait();
      return values;
    };
    auto forward = all[0];
    for (int r = 1; r < p; ++r) {
      for (std::size_t i = 0; i < count; ++i) forward[i] += all[static_cast<std::size_t>(r)][i];
    }
    EXPECT_EQ(sum(AllReduce::shared), forward) << count;
    EXPECT_EQ(sum(AllReduce::ring), forward) << count;
    // Pairs, then pairs of pairs.
    auto pairs = all;
    for (int width = 1; width < p; width *= 2) {
      for (int r = 0; r + width < p; r += 2 * width) {
        for (std::size_t i = 0; i < count; ++i)
          pairs[static_cast<std::size_t>(r)][i] += pairs[static_cast<std::size_t>(r + width)][i];
      }
    }
    EXPECT_EQ(sum(AllReduce::tree), pairs[0]) << count;
    // Nodes of one rank each: up to 4 exchange pairwise, more add as the tree does, by halving or pairwise.
    set_ranks_per_node(1);
    EXPECT_EQ(sum(AllReduce::hierarchical), p <= 4 ? forward : pairs[0]) << count;
    set_ranks_per_node(0);
  }
}

TEST(AllReduceChoice, GoesByPlace) {
  open_node_memory(room_for_buffers);
  auto world = Communicator::world();
  EXPECT_EQ(world.describe_all_reduce(), "mpi");
  bool const alone = world.size() == 1;
  world.prepare({AllReduce::automatic});
  EXPECT_EQ(world.describe_all_reduce(), alone ? "mpi" : "shared");
  set_ranks_per_node(1);
  world.prepare({AllReduce::automatic});
  EXPECT_EQ(world.describe_all_reduce(), alone ? "mpi" : "tree, ring from 32.00 KiB");
  EXPECT_EQ(world.all_reduce_algorithm(1 << 20), alone ? AllReduce::mpi : AllReduce::ring);
  set_ranks_per_node(2);
  world.prepare({AllReduce::shared});
  EXPECT_EQ(world.describe_all_reduce(), alone ? "mpi" : world.size() == 2 ? "shared" : "hierarchical");
  set_ranks_per_node(0);
  world.prepare({AllReduce::mpi});
  EXPECT_EQ(world.describe_all_reduce(), "mpi");
}

}  // namespace
