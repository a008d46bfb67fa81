// SPDX-License-Identifier: Apache-2.0
// Reduce-scatters and all-gathers over shares of any length, in every way: exact where the sum is, and bit for bit what
// an all-reduce gives where it is not; mixed with each other and with all-reduces; and the bytes that they take.
#include "all_reduce_ways.hpp"

#include <support/errors.hpp>
#include <support/mpi_main.hpp>

#include <p3d/base/float16.hpp>
#include <p3d/comm/large_count.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace p3d::comm;
using namespace p3d::test;

namespace {

using Bounds = std::vector<std::int64_t>;
using Bytes = std::vector<std::byte>;

class Shares : public AllReduceWays {
protected:
  /// Whether the order of summation is said to be that of an all-reduce.
  bool fixed() const { return GetParam().algorithm != AllReduce::mpi; }
};
INSTANTIATE_TEST_SUITE_P(Ways, Shares,
                         ::testing::Values(Way{AllReduce::mpi, 0}, Way{AllReduce::ring, 0}, Way{AllReduce::tree, 0},
                                           Way{AllReduce::shared, 0}, Way{AllReduce::hierarchical, 1},
                                           Way{AllReduce::hierarchical, 2}, Way{AllReduce::hierarchical, 3},
                                           Way{AllReduce::automatic, 0}, Way{AllReduce::automatic, 1}),
                         [](auto const& info) { return name(info.param); });

/// Shares of n elements that begin at `first`: even, all of one rank, of every other rank, at random places, or growing
/// with the rank.
enum class Cut { even, first, last, every_other, random, growing };
constexpr Cut cuts[] = {Cut::even, Cut::first, Cut::last, Cut::every_other, Cut::random, Cut::growing};

Bounds bounds_of(Cut cut, std::int64_t n, int p, std::int64_t first = 0) {
  Bounds out(static_cast<std::size_t>(p) + 1, 0);
  std::mt19937_64 engine(static_cast<std::uint64_t>(n));
  for (int r = 1; r < p; ++r) {
    auto& at = out[static_cast<std::size_t>(r)];
    switch (cut) {
      case Cut::even: at = n * r / p; break;
      case Cut::first: at = n; break;
      case Cut::last: at = 0; break;
      case Cut::every_other: at = n * (r / 2 * 2) / p; break;
      case Cut::random: at = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n + 1)); break;
      case Cut::growing: at = n * r * r / (p * p); break;
    }
  }
  out.back() = n;
  std::sort(out.begin(), out.end());
  for (auto& at : out) at += first;
  return out;
}

struct Format {
  ElementType type;
  std::string name;
  /// Writes element i of a buffer.
  void (*set)(std::byte* buffer, std::int64_t i, double value);
  double (*get)(std::byte const* buffer, std::int64_t i);
};
template <class T>
void set_as(std::byte* buffer, std::int64_t i, double value) {
  auto const x = static_cast<T>(value);
  std::memcpy(buffer + i * static_cast<std::int64_t>(sizeof(T)), &x, sizeof(T));
}
template <class T>
double get_as(std::byte const* buffer, std::int64_t i) {
  T x;
  std::memcpy(&x, buffer + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return static_cast<double>(x);
}
template <std::uint16_t (*bits)(float)>
void set_16(std::byte* buffer, std::int64_t i, double value) {
  auto const x = bits(static_cast<float>(value));
  std::memcpy(buffer + 2 * i, &x, 2);
}
template <float (*value)(std::uint16_t)>
double get_16(std::byte const* buffer, std::int64_t i) {
  std::uint16_t x;
  std::memcpy(&x, buffer + 2 * i, 2);
  return value(x);
}
Format const float32{Type::float32, "float32", set_as<float>, get_as<float>};
Format const float64{Type::float64, "float64", set_as<double>, get_as<double>};
Format const bfloat16{Float16Type::bfloat16, "bfloat16", set_16<p3d::base::bfloat16_bits>,
                      get_16<p3d::base::bfloat16_value>};
Format const float16{Float16Type::float16, "float16", set_16<p3d::base::float16_bits>,
                     get_16<p3d::base::float16_value>};
Format const int32{Type::int32, "int32", set_as<std::int32_t>, get_as<std::int32_t>};
Format const int64{Type::int64, "int64", set_as<std::int64_t>, get_as<std::int64_t>};
Format const uint64{Type::uint64, "uint64", set_as<std::uint64_t>, get_as<std::uint64_t>};

/// Integers whose sum over eight ranks is exact in every type.
double element(int r, std::int64_t i) { return static_cast<double>((r * 7 + i % 1000 * 5) % 31); }
double expected(int p, std::int64_t i, Reduction op = Reduction::sum) {
  double value = element(0, i);
  for (int r = 1; r < p; ++r) {
    double const next = element(r, i);
    value = op == Reduction::sum ? value + next : op == Reduction::max ? std::max(value, next) : std::min(value, next);
  }
  return value;
}

/// Elements [begin, end) that are not what they should be.
template <class Expected>
std::int64_t wrong(Format const& format, std::byte const* buffer, std::int64_t begin, std::int64_t end,
                   Expected&& value) {
  std::int64_t count = 0;
  for (auto i = begin; i < end; ++i) count += format.get(buffer, i) != value(i) ? 1 : 0;
  return count;
}

// With a margin of one element that is nobody's on both sides.
void check_exact(Communicator& comm, Format const& format, std::int64_t n, Cut cut, Reduction op = Reduction::sum) {
  int const p = comm.size(), me = comm.rank();
  auto const bounds = bounds_of(cut, n, p, 1);
  auto const own = bounds[static_cast<std::size_t>(me)], end = bounds[static_cast<std::size_t>(me) + 1];
  Bytes buffer(static_cast<std::size_t>(n + 2) * size_of(format.type));
  for (std::int64_t i = 0; i < n + 2; ++i) format.set(buffer.data(), i, element(me, i));
  comm.reduce_scatter(buffer.data(), bounds, format.type, op).wait();
  auto const text = format.name + ", " + std::to_string(n) + " elements, cut " + std::to_string(static_cast<int>(cut));
  auto const sum = [&](std::int64_t i) { return expected(p, i, op); };
  EXPECT_EQ(wrong(format, buffer.data(), own, end, sum), 0) << text;
  for (std::int64_t i = 1; i <= n; ++i) {
    if (i < own || i >= end) format.set(buffer.data(), i, 77.0);
  }
  comm.all_gather(buffer.data(), bounds, format.type).wait();
  EXPECT_EQ(wrong(format, buffer.data(), 1, n + 1, sum), 0) << text << ", gathered";
  EXPECT_EQ(format.get(buffer.data(), 0), element(me, 0)) << text;
  EXPECT_EQ(format.get(buffer.data(), n + 1), element(me, n + 1)) << text;
}

TEST_P(Shares, AreExactHoweverTheyAreCut) {
  for (auto const cut : cuts) {
    for (std::int64_t const n : {0, 1, 2, 7, 64, 1001}) check_exact(world, float64, n, cut);
  }
}

// Around the lengths of a message's piece (64 KiB of each share), of a slot (512 KiB), and of more slots than there
// are.
TEST_P(Shares, AreExactAroundSegments) {
  for (std::int64_t const n : {16385 * p, 131071, 131073, 700001}) {
    check_exact(world, float32, n, Cut::even);
    check_exact(world, float32, n, Cut::random);
  }
  check_exact(world, float32, 150001, Cut::last);
}

TEST_P(Shares, OfEveryTypeAndReduction) {
  for (auto const& format : {int32, int64, uint64, float32, float64}) {
    for (auto const op : {Reduction::sum, Reduction::max, Reduction::min})
      check_exact(world, format, 1003, Cut::growing, op);
  }
  if (GetParam().algorithm == AllReduce::mpi && p > 1) return;
  for (auto const& format : {bfloat16, float16}) {
    for (auto const op : {Reduction::sum, Reduction::max, Reduction::min})
      check_exact(world, format, 1003, Cut::growing, op);
  }
}

TEST_P(Shares, CutIntoShortPieces) {
  for (std::int64_t const piece : {1, 3, 7}) {
    set_max_count_per_call(piece);
    for (auto const cut : cuts) {
      for (std::int64_t const n : {1, 5, 23}) check_exact(world, float64, n, cut);
    }
    set_max_count_per_call(0);
  }
}

TEST_P(Shares, OfBytesAreGathered) {
  auto const bounds = bounds_of(Cut::growing, 1001, p);
  std::vector<char> text(1001, 'x');
  for (auto i = bounds[static_cast<std::size_t>(me)]; i < bounds[static_cast<std::size_t>(me) + 1]; ++i)
    text[static_cast<std::size_t>(i)] = static_cast<char>('a' + i % 20);
  world.all_gather(text.data(), bounds, Type::byte).wait();
  for (std::size_t i = 0; i < text.size(); ++i) ASSERT_EQ(text[i], 'a' + static_cast<int>(i % 20)) << i;
  EXPECT_THROW(world.reduce_scatter(text.data(), bounds, Type::byte, Reduction::sum), p3d::base::Error);
}

/// Numbers of both signs and several magnitudes, whose sum depends on the order.
void fill_rough(Format const& format, std::byte* buffer, std::int64_t n, int rank) {
  std::mt19937 engine(static_cast<unsigned>(1000 + rank));
  for (std::int64_t i = 0; i < n; ++i) {
    format.set(buffer, i, std::ldexp(static_cast<double>(engine() % 2001) - 1000.0, -static_cast<int>(engine() % 8)));
  }
}

// The requirement that layouts with sharded optimizer state give the bits of those without.
TEST_P(Shares, HaveTheBitsOfAnAllReduce) {
  if (!fixed()) GTEST_SKIP() << "MPI adds in an order of its own";
  for (auto const& format : {float32, bfloat16, float16, float64}) {
    auto const size = size_of(format.type);
    for (std::int64_t const n : {5, 997, 9001, 150001}) {
      Bytes sum(static_cast<std::size_t>(n) * size);
      fill_rough(format, sum.data(), n, me);
      auto const given = sum;
      world.all_reduce(sum.data(), n, format.type, Reduction::sum).wait();
      for (auto const cut : cuts) {
        if (n > 9001 && (format.name == "float16" || cut == Cut::first || cut == Cut::every_other)) continue;
        auto const bounds = bounds_of(cut, n, p);
        auto part = given;
        world.reduce_scatter(part.data(), bounds, format.type, Reduction::sum).wait();
        auto const begin = static_cast<std::size_t>(bounds[static_cast<std::size_t>(me)]) * size;
        auto const end = static_cast<std::size_t>(bounds[static_cast<std::size_t>(me) + 1]) * size;
        EXPECT_EQ(std::memcmp(part.data() + begin, sum.data() + begin, end - begin), 0)
            << format.name << ", " << n << " elements, cut " << static_cast<int>(cut);
        world.all_gather(part.data(), bounds, format.type).wait();
        EXPECT_EQ(part, sum) << format.name << ", " << n << " elements, cut " << static_cast<int>(cut);
      }
    }
  }
}

/// The k-th of `count` pieces of every share.
SharePieces pieces_of(Bounds const& bounds, std::int64_t k, std::int64_t count) {
  SharePieces out;
  for (std::size_t r = 0; r + 1 < bounds.size(); ++r) {
    auto const n = bounds[r + 1] - bounds[r];
    out.begins.push_back(bounds[r] + n * k / count);
    out.ends.push_back(bounds[r] + n * (k + 1) / count);
  }
  out.whole = bounds.back() - bounds.front();
  return out;
}

// All pieces are under way at once, the last one first. MPI's own sums are exact here, and all sums of float16 are none
// of its affair.
TEST_P(Shares, PiecesTogetherAreTheWhole) {
  for (auto const& format : {float64, float16}) {
    bool const exact = !fixed();
    if (exact && format.name == "float16") continue;
    auto const size = size_of(format.type);
    for (std::int64_t const n : {7, 997, 9001, 90001}) {
      for (auto const cut : {Cut::even, Cut::growing, Cut::every_other}) {
        auto const bounds = bounds_of(cut, n, p, 1);
        Bytes given(static_cast<std::size_t>(n + 2) * size);
        fill_rough(format, given.data(), n + 2, me);
        for (std::int64_t i = 0; exact && i < n + 2; ++i) format.set(given.data(), i, element(me, i));
        auto whole = given;
        world.reduce_scatter(whole.data(), bounds, format.type, Reduction::sum).wait();
        for (std::int64_t const count : {2, 5}) {
          auto parts = given;
          std::vector<Request> requests;
          for (auto k = count; k-- > 0;)
            requests.push_back(
                world.reduce_scatter(parts.data(), pieces_of(bounds, k, count), format.type, Reduction::sum));
          wait_all(requests);
          auto const begin = static_cast<std::size_t>(bounds[static_cast<std::size_t>(me)]) * size;
          auto const end = static_cast<std::size_t>(bounds[static_cast<std::size_t>(me) + 1]) * size;
          auto const text = format.name + ", " + std::to_string(n) + " elements, cut " +
                            std::to_string(static_cast<int>(cut)) + ", " + std::to_string(count) + " pieces";
          EXPECT_EQ(std::memcmp(parts.data() + begin, whole.data() + begin, end - begin), 0) << text;
          auto gathered = parts, by_parts = parts;
          world.all_gather(gathered.data(), bounds, format.type).wait();
          for (std::int64_t k = 0; k < count; ++k)
            requests.push_back(world.all_gather(by_parts.data(), pieces_of(bounds, k, count), format.type));
          wait_all(requests);
          EXPECT_EQ(by_parts, gathered) << text;
        }
      }
    }
  }
}

// What lies between the pieces is nobody's: neither read nor written.
TEST_P(Shares, NothingBetweenPiecesIsTouched) {
  Bounds bounds(static_cast<std::size_t>(p) + 1);
  for (int r = 0; r <= p; ++r) bounds[static_cast<std::size_t>(r)] = 1000 * r;
  auto const pieces = pieces_of(bounds, 1, 3);
  std::vector<float> values(static_cast<std::size_t>(bounds.back()));
  auto const between = [&](std::int64_t i) { return i % 1000 < 333 || i % 1000 >= 666; };
  for (std::int64_t i = 0; i < bounds.back(); ++i)
    values[static_cast<std::size_t>(i)] = between(i) ? std::nanf("") : static_cast<float>(element(me, i));
  world.reduce_scatter(values.data(), pieces, Type::float32, Reduction::sum).wait();
  world.all_gather(values.data(), pieces, Type::float32).wait();
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < bounds.back(); ++i) {
    auto const value = values[static_cast<std::size_t>(i)];
    bad += between(i) != std::isnan(value) || (!between(i) && static_cast<double>(value) != expected(p, i)) ? 1 : 0;
  }
  EXPECT_EQ(bad, 0);
  auto turned = pieces;
  std::swap(turned.begins.front(), turned.ends.front());
  EXPECT_THROW(world.all_gather(values.data(), turned, Type::float32), p3d::base::Error);
}

/// Memory that the others of the node reach on every `divisor`th rank, private on the others.
struct Mixed {
  Mixed(std::int64_t elements, int rank, int divisor)
      : shared(rank % divisor == 0 ? static_cast<std::size_t>(elements) * sizeof(float) : 0),
        own(shared.data() == nullptr ? static_cast<std::size_t>(elements) * sizeof(float) : 0) {}
  std::byte* data() { return shared.data() == nullptr ? own.data() : static_cast<std::byte*>(shared.data()); }
  SharedBuffer shared;
  Bytes own;
};

// Written anew at once, so a reader that comes late shows.
TEST_P(Shares, OfSharedBuffers) {
  constexpr std::int64_t longest = 300007;
  for (int const divisor : {1, 2, 3}) {
    Mixed mixed(longest, me, divisor);
    if (p > 1) {
      EXPECT_EQ(mixed.shared.data() != nullptr, me % divisor == 0);
    }
    auto* const values = mixed.data();
    for (std::int64_t const n : {std::int64_t{3}, std::int64_t{5000}, longest}) {
      auto const bounds = bounds_of(divisor == 2 ? Cut::random : Cut::even, n, p);
      auto const own = bounds[static_cast<std::size_t>(me)], end = bounds[static_cast<std::size_t>(me) + 1];
      for (int repeat = 0; repeat < 3; ++repeat) {
        auto const sum = [&](std::int64_t i) { return expected(p, i + repeat); };
        for (std::int64_t i = 0; i < n; ++i) float32.set(values, i, element(me, i + repeat));
        world.reduce_scatter(values, bounds, Type::float32, Reduction::sum).wait();
        EXPECT_EQ(wrong(float32, values, own, end, sum), 0) << n << " elements, every " << divisor << "th rank shares";
        for (std::int64_t i = 0; i < n; ++i) {
          if (i < own || i >= end) float32.set(values, i, -1.0);
        }
        world.all_gather(values, bounds, Type::float32).wait();
        EXPECT_EQ(wrong(float32, values, 0, n, sum), 0) << n << " gathered, every " << divisor << "th rank shares";
        for (std::int64_t i = 0; i < n; ++i) float32.set(values, i, -2.0);
      }
    }
  }
}

/// One of many operations under way, with its own buffer.
struct Operation {
  int kind = 0;
  std::int64_t n = 0;
  Bounds bounds;
  Format format = float32;
  Bytes buffer;
};

// The same seed on all ranks: the order of starts is the same, that of waits is not.
TEST_P(Shares, ManyAtOnceInAnyOrder) {
  std::mt19937 engine(7);
  for (int round = 0; round < 3; ++round) {
    std::vector<Operation> operations(14);
    std::vector<Bytes> bits[2];
    for (auto& o : operations) {
      o.kind = static_cast<int>(engine() % 3);
      o.n = static_cast<std::int64_t>(engine() % (engine() % 4 == 0 ? 200000 : 3000));
      o.bounds = bounds_of(cuts[engine() % std::size(cuts)], o.n, p);
      bool const narrow = engine() % 2 == 0 && GetParam().algorithm != AllReduce::mpi;
      o.format = narrow ? bfloat16 : float32;
    }
    for (auto& again : bits) {
      std::vector<Request> requests;
      for (auto& o : operations) {
        o.buffer.assign(static_cast<std::size_t>(o.n) * size_of(o.format.type), std::byte{0});
        fill_rough(o.format, o.buffer.data(), o.n, me);
        auto* const data = o.buffer.data();
        requests.push_back(o.kind == 0   ? world.all_reduce(data, o.n, o.format.type, Reduction::sum)
                           : o.kind == 1 ? world.reduce_scatter(data, o.bounds, o.format.type, Reduction::sum)
                                         : world.all_gather(data, o.bounds, o.format.type));
      }
      std::vector<std::size_t> order(operations.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(100 * round + me)));
      for (auto const i : order) requests[i].wait();
      for (auto const& o : operations) {
        auto const size = size_of(o.format.type);
        auto const own = o.kind == 1 ? o.bounds[static_cast<std::size_t>(me)] : 0;
        auto const end = o.kind == 1 ? o.bounds[static_cast<std::size_t>(me) + 1] : o.n;
        again.emplace_back(o.buffer.begin() + own * static_cast<std::int64_t>(size),
                           o.buffer.begin() + end * static_cast<std::int64_t>(size));
      }
    }
    if (fixed()) {
      EXPECT_EQ(bits[0], bits[1]) << "round " << round;
    }
    for (std::size_t k = 0; k < operations.size(); ++k) {
      auto& o = operations[k];
      auto const size = size_of(o.format.type);
      Bytes right(o.buffer.size());
      if (o.kind == 2) {  // the owners' numbers
        for (int r = 0; r < p; ++r) {
          Bytes theirs(o.buffer.size());
          fill_rough(o.format, theirs.data(), o.n, r);
          auto const begin = o.bounds[static_cast<std::size_t>(r)] * static_cast<std::int64_t>(size);
          auto const end = o.bounds[static_cast<std::size_t>(r) + 1] * static_cast<std::int64_t>(size);
          std::copy(theirs.begin() + begin, theirs.begin() + end, right.begin() + begin);
        }
        EXPECT_EQ(bits[1][k], right) << "operation " << k;
      } else if (fixed()) {  // what an all-reduce alone gives
        fill_rough(o.format, right.data(), o.n, me);
        world.all_reduce(right.data(), o.n, o.format.type, Reduction::sum).wait();
        auto const begin = o.kind == 1 ? o.bounds[static_cast<std::size_t>(me)] * static_cast<std::int64_t>(size) : 0;
        EXPECT_TRUE(std::equal(bits[1][k].begin(), bits[1][k].end(), right.begin() + begin)) << "operation " << k;
      }
    }
  }
}

// Rank 0 waits for messages that the others send when the collective is over, in which rank 0 has its part to do.
TEST_P(Shares, GoOnWhileTheRankWaitsForSomethingElse) {
  std::vector<float> values(200003, 1.0F);
  auto const bounds = bounds_of(Cut::even, 200003, p);
  auto scatter = world.reduce_scatter(values.data(), bounds, Type::float32, Reduction::sum);
  std::vector<int> word(1, 0);
  if (me == 0) {
    for (int r = 1; r < p; ++r) world.recv(word.data(), 1, Type::int32, r, 9).wait();
  }
  scatter.wait();
  if (me > 0) world.send(word.data(), 1, Type::int32, 0, 9).wait();
  auto gather = world.all_gather(values.data(), bounds, Type::float32);
  if (me == 0) {
    for (int r = 1; r < p; ++r) world.recv(word.data(), 1, Type::int32, r, 9).wait();
  }
  gather.wait();
  if (me > 0) world.send(word.data(), 1, Type::int32, 0, 9).wait();
  EXPECT_EQ(std::count(values.begin(), values.end(), static_cast<float>(p)), 200003);
}

TEST_P(Shares, TakeTheBytesThatTheyMust) {
  std::int64_t const size = 4;
  for (std::int64_t const n : {10, 1000, 1500, 150001}) {
    std::vector<float> values(static_cast<std::size_t>(n), 1.0F);
    for (auto const cut : cuts) {
      auto const bounds = bounds_of(cut, n, p);
      auto const own = bounds[static_cast<std::size_t>(me) + 1] - bounds[static_cast<std::size_t>(me)];
      world.reset_accounting();
      world.all_reduce(values.data(), n, Type::float32, Reduction::sum).wait();
      world.reduce_scatter(values.data(), bounds, Type::float32, Reduction::sum).wait();
      world.all_gather(values.data(), bounds, Type::float32).wait();
      auto const seen = world.accounting();
      EXPECT_EQ(seen.operations, p == 1 ? 0 : 3);
      EXPECT_EQ(seen.bytes, p == 1 ? 0 : 3 * n * size);
      EXPECT_EQ(seen.sent.reduce_scatter, p == 1 ? 0 : (n - own) * size) << n << ", cut " << static_cast<int>(cut);
      bool const in_one = GetParam().ranks_per_node == 0 || GetParam().algorithm == AllReduce::automatic;
      if (in_one || (cut == Cut::even && n % p == 0 && p % GetParam().ranks_per_node == 0)) {
        EXPECT_EQ(seen.sent.all_gather, own * (p - 1) * size) << n << ", cut " << static_cast<int>(cut);
      }
      if (GetParam().algorithm == AllReduce::ring) {
        EXPECT_LE(std::abs(seen.sent.all_reduce * p - 2 * (p - 1) * n * size), 2 * p * p * size);
      }
      std::int64_t all[] = {seen.sent.all_reduce, seen.sent.reduce_scatter, seen.sent.all_gather, seen.sent.total()};
      world.all_reduce(all, 4, Type::int64, Reduction::sum).wait();
      EXPECT_EQ(all[0], 2 * (p - 1) * n * size) << n;
      EXPECT_EQ(all[1], (p - 1) * n * size) << n;
      EXPECT_EQ(all[2], (p - 1) * n * size) << n;
      EXPECT_EQ(all[3], 4 * (p - 1) * n * size) << n;
    }
  }
}

TEST(Sent, CountsMessagesAndBroadcasts) {
  auto world = Communicator::world();
  int const p = world.size(), me = world.rank();
  double in[3] = {}, out[3] = {};
  auto incoming = world.recv(in, 3, Type::float64, (me + p - 1) % p, 1);
  world.send(out, 3, Type::float64, (me + 1) % p, 1).wait();
  incoming.wait();
  world.broadcast(out, 3, Type::float64, p - 1).wait();
  std::vector<double> all(static_cast<std::size_t>(3 * p));
  world.all_gather(out, all.data(), 3, Type::float64).wait();
  Communicator::Sent const expected_sent{
      .all_gather = 24 * (p - 1), .broadcast = me == p - 1 ? 24 * (p - 1) : 0, .messages = 24};
  EXPECT_EQ(world.accounting().sent, expected_sent);
}

TEST(SharesOfOneRank, CostNothing) {
  auto self = Communicator::self();
  double values[3] = {1, 2, 3};
  Bounds const bounds{0, 3};
  EXPECT_FALSE(self.reduce_scatter(values, bounds, Type::float64, Reduction::sum).active());
  EXPECT_FALSE(self.all_gather(values, bounds, Type::float64).active());
  EXPECT_EQ(values[1], 2.0);
  EXPECT_EQ(self.accounting().operations, 0);
  EXPECT_EQ(self.accounting().sent.total(), 0);
}

TEST(SharesThatAreNone, AreRefused) {
  auto world = Communicator::world();
  int const p = world.size();
  std::vector<float> values(100);
  auto const refused = [&](Bounds const& bounds, char const* text) {
    expect_error([&] { world.reduce_scatter(values.data(), bounds, Type::float32, Reduction::sum); }, text);
    expect_error([&] { world.all_gather(values.data(), bounds, Type::float32); }, text);
  };
  refused(Bounds(static_cast<std::size_t>(p), 0), "every rank has one share of a buffer");
  auto bounds = bounds_of(Cut::even, 100, p);
  bounds.front() = -1;
  refused(bounds, "shares follow each other in a buffer");
  bounds.front() = 101;
  refused(bounds, "shares follow each other in a buffer");
}

TEST(SharesOf16Bits, AreNotSummedByMpi) {
  auto world = Communicator::world();
  if (world.size() == 1) GTEST_SKIP() << "nothing to add";
  std::vector<std::uint16_t> values(8);
  auto const bounds = bounds_of(Cut::even, 8, world.size());
  auto const scatter = [&](Memory memory) {
    world.reduce_scatter(values.data(), bounds, Float16Type::bfloat16, Reduction::sum, memory).wait();
  };
  expect_error([&] { scatter(Memory::host); }, "the MPI library's, which has no such sum");
  world.prepare({AllReduce::ring});
  expect_error([&] { scatter(Memory::device); }, "memory that only MPI reads");
  scatter(Memory::host);
}

// What MPI is given of memory that the host does not read: here it can be looked at after all.
TEST(SharesInDeviceMemory, GoByMpi) {
  auto world = Communicator::world();
  int const p = world.size(), me = world.rank();
  world.prepare({AllReduce::ring});
  for (auto const cut : cuts) {
    auto const bounds = bounds_of(cut, 101, p);
    Bytes buffer(101 * sizeof(float));
    for (int i = 0; i < 101; ++i) float32.set(buffer.data(), i, element(me, i));
    world.reduce_scatter(buffer.data(), bounds, Type::float32, Reduction::sum, Memory::device).wait();
    auto const sum = [&](std::int64_t i) { return expected(p, i); };
    EXPECT_EQ(wrong(float32, buffer.data(), bounds[static_cast<std::size_t>(me)],
                    bounds[static_cast<std::size_t>(me) + 1], sum),
              0);
    world.all_gather(buffer.data(), bounds, Type::float32, Memory::device).wait();
    EXPECT_EQ(wrong(float32, buffer.data(), 0, 101, sum), 0);
  }
}

}  // namespace
