// SPDX-License-Identifier: Apache-2.0
// All-reduces of 16-bit numbers by every algorithm: exact where the sum is, within a bound of the sum in double where
// it is not, the same bits on all ranks and always; half the bytes of float; and no way to have MPI do the sum.
#include "all_reduce_ways.hpp"

#include <support/mpi_main.hpp>

#include <p3d/base/float16.hpp>
#include <p3d/comm/large_count.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

using namespace p3d::comm;
using namespace p3d::test;

namespace {

using Bits = std::vector<std::uint16_t>;

struct Format {
  Float16Type type;
  std::uint16_t (*bits)(float);
  float (*value)(std::uint16_t);
  double roundoff;
};
constexpr Format formats[] = {
    {Float16Type::bfloat16, p3d::base::bfloat16_bits, p3d::base::bfloat16_value, 0x1p-8},
    {Float16Type::float16, p3d::base::float16_bits, p3d::base::float16_value, 0x1p-11},
};

class AllReduces16 : public AllReduceWays {
protected:
  void reduce(Bits& values, Format const& format, Reduction op = Reduction::sum) {
    world.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), format.type, op).wait();
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, AllReduces16,
                         ::testing::Values(Way{AllReduce::ring, 0}, Way{AllReduce::tree, 0}, Way{AllReduce::shared, 0},
                                           Way{AllReduce::shared, 2}, Way{AllReduce::hierarchical, 1},
                                           Way{AllReduce::hierarchical, 2}, Way{AllReduce::automatic, 0},
                                           Way{AllReduce::automatic, 1}, Way{AllReduce::automatic, 2}),
                         [](auto const& info) { return name(info.param); });

/// Integers whose sum over eight ranks is one of both types still.
float element(int r, std::size_t i) { return static_cast<float>((r * 7 + static_cast<int>(i % 1000) * 5) % 31); }

TEST_P(AllReduces16, AreExactAtEveryLength) {
  for (auto const& format : formats) {
    for (std::size_t const count : {0, 1, 2, 3, 7, 19, 20, 21, 64, 1000, 2047, 2049, 40001, 300007}) {
      for (auto const op : {Reduction::sum, Reduction::max, Reduction::min}) {
        if (op != Reduction::sum && count > 3000) continue;
        Bits values(count + 2, 0x1234);
        for (std::size_t i = 0; i < count; ++i) values[i + 1] = format.bits(element(me, i));
        world.all_reduce(values.data() + 1, static_cast<std::int64_t>(count), format.type, op).wait();
        EXPECT_EQ(values.front(), 0x1234);
        EXPECT_EQ(values.back(), 0x1234);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) {
          float expected = element(0, i);
          for (int r = 1; r < p; ++r) {
            float const next = element(r, i);
            expected = op == Reduction::sum   ? expected + next
                       : op == Reduction::max ? std::max(expected, next)
                                              : std::min(expected, next);
          }
          wrong += format.value(values[i + 1]) != expected ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0u) << "of " << count << " elements";
      }
    }
  }
}

TEST_P(AllReduces16, CutIntoShortPieces) {
  for (auto const& format : formats) {
    for (std::int64_t const piece : {1, 3, 7}) {
      set_max_count_per_call(piece);
      Bits values(23);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = format.bits(element(me, i));
      reduce(values, format);
      for (std::size_t i = 0; i < values.size(); ++i) {
        float expected = 0;
        for (int r = 0; r < p; ++r) expected += element(r, i);
        EXPECT_EQ(format.value(values[i]), expected);
      }
      set_max_count_per_call(0);
    }
  }
}

/// Numbers of both signs and of several magnitudes, whose sums must be rounded.
Bits rough(int rank, std::size_t count, Format const& format) {
  std::mt19937 engine(static_cast<unsigned>(1000 + rank));
  Bits out(count);
  for (auto& x : out)
    x = format.bits(std::ldexp(static_cast<float>(engine() % 2001) - 1000.0F, -static_cast<int>(engine() % 8)));
  return out;
}

TEST_P(AllReduces16, KeepTheBoundAndTheBits) {
  // Roundings to 16 bits on an element's way. Inside a node there is one, and by ring; at most one more for each
  // further message.
  bool const one_node = (GetParam().algorithm == AllReduce::shared && GetParam().ranks_per_node == 0) ||
                        GetParam().algorithm == AllReduce::ring;
  double const roundings = p == 1 ? 0 : one_node ? 1 : p;
  for (auto const& format : formats) {
    for (std::size_t const count : {std::size_t{5}, std::size_t{997}, std::size_t{150001}}) {
      std::vector<Bits> all;
      for (int r = 0; r < p; ++r) all.push_back(rough(r, count, format));
      auto first = all[static_cast<std::size_t>(me)];
      reduce(first, format);
      double worst = 0;
      std::size_t other = 0;
      for (std::size_t i = 0; i < count; ++i) {
        double exact = 0, size = 0;
        float in_order = format.value(all[0][i]);
        for (int r = 0; r < p; ++r) {
          float const x = format.value(all[static_cast<std::size_t>(r)][i]);
          exact += x;
          size += std::abs(x);
          if (r > 0) in_order += x;
        }
        if (size > 0) worst = std::max(worst, std::abs(format.value(first[i]) - exact) / size);
        other += first[i] != format.bits(in_order) ? 1 : 0;
      }
      EXPECT_LE(worst, 1.01 * roundings * format.roundoff + p * 0x1p-24) << count;
      if (one_node) {
        EXPECT_EQ(other, 0u) << "not the sum in float, in the order of ranks, rounded once";
      }
      for (int repeat = 0; repeat < 3; ++repeat) {
        auto again = all[static_cast<std::size_t>(me)];
        reduce(again, format);
        EXPECT_EQ(again, first) << count << " elements, repeat " << repeat;
      }
      auto root = first;
      world.broadcast(root.data(), static_cast<std::int64_t>(count), format.type, 0).wait();
      EXPECT_EQ(first, root) << count << " elements: other bits than rank 0";
    }
  }
}

TEST_P(AllReduces16, OfSharedBuffers) {
  constexpr std::size_t longest = 700001;
  for (auto const& format : formats) {
    for (int const divisor : {1, 2}) {
      SharedBuffer const shared(me % divisor == 0 ? longest * 2 : 0);
      Bits own(shared.data() == nullptr ? longest : 0);
      auto* const values = shared.data() == nullptr ? own.data() : static_cast<std::uint16_t*>(shared.data());
      for (std::size_t const count : {std::size_t{3}, std::size_t{5000}, longest}) {
        for (std::size_t i = 0; i < count; ++i) values[i] = format.bits(element(me, i));
        world.all_reduce(values, static_cast<std::int64_t>(count), format.type, Reduction::sum).wait();
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) {
          float expected = 0;
          for (int r = 0; r < p; ++r) expected += element(r, i);
          wrong += format.value(values[i]) != expected ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0u) << "of " << count << " elements, every " << divisor << "th rank shares";
      }
    }
  }
}

TEST_P(AllReduces16, InfinityAndNanComeThrough) {
  for (auto const& format : formats) {
    Bits values(40, format.bits(1.0F));
    if (me == p - 1) {
      values[3] = format.bits(INFINITY);
      values[39] = format.bits(NAN);
    }
    reduce(values, format);
    for (std::size_t i = 0; i < values.size(); ++i) {
      float const x = format.value(values[i]);
      EXPECT_EQ(std::isinf(x), i == 3);
      EXPECT_EQ(std::isnan(x), i == 39);
    }
  }
}

// With those of float under way too, on the same communicator.
TEST_P(AllReduces16, SeveralAtOnce) {
  std::vector<float> wide(30001, 1.0F);
  Bits a(70001, formats[0].bits(1.0F)), b(9, formats[1].bits(2.0F));
  std::vector<Request> requests;
  requests.push_back(world.all_reduce(a.data(), 70001, formats[0].type, Reduction::sum));
  requests.push_back(world.all_reduce(wide.data(), 30001, Type::float32, Reduction::sum));
  requests.push_back(world.all_reduce(b.data(), 9, formats[1].type, Reduction::sum));
  for (std::size_t k = 0; k < 3; ++k) requests[(k + static_cast<std::size_t>(me)) % 3].wait();
  auto const sum = static_cast<float>(p);
  EXPECT_EQ(a, Bits(70001, formats[0].bits(sum)));
  EXPECT_EQ(wide, std::vector<float>(30001, sum));
  EXPECT_EQ(b, Bits(9, formats[1].bits(2 * sum)));
}

TEST_P(AllReduces16, AreHalfTheBytesOfFloat) {
  std::vector<float> wide(1001);
  Bits narrow(1001);
  world.reset_accounting();
  world.all_reduce(wide.data(), 1001, Type::float32, Reduction::sum).wait();
  auto const bytes = world.accounting().bytes;
  world.reset_accounting();
  reduce(narrow, formats[0]);
  EXPECT_EQ(2 * world.accounting().bytes, bytes);
  EXPECT_EQ(world.accounting().operations, p == 1 ? 0 : 1);
}

TEST(Float16Sums, AreNotForMpi) {
  auto world = Communicator::world();
  Bits values(8, formats[0].bits(1.0F));
  if (world.size() == 1) {  // nothing to add
    EXPECT_FALSE(world.all_reduce(values.data(), 8, Float16Type::bfloat16, Reduction::sum).active());
    return;
  }
  auto const fails = [&](Memory memory, char const* found) {
    try {
      world.all_reduce(values.data(), 8, Float16Type::bfloat16, Reduction::sum, memory).wait();
      ADD_FAILURE() << "MPI added 16-bit numbers";
    } catch (p3d::base::Error const& e) {
      EXPECT_NE(e.text().found.find(found), std::string::npos) << e.what();
      EXPECT_NE(e.text().fix.find("comm.allreduce"), std::string::npos) << e.what();
    }
  };
  fails(Memory::host, "the MPI library's");
  world.prepare({AllReduce::mpi});
  fails(Memory::host, "the MPI library's");
  world.prepare({AllReduce::ring});
  fails(Memory::device, "memory that only MPI reads");
}

TEST(Float16Messages, TravelInHalfTheBytes) {
  auto world = Communicator::world();
  int const p = world.size(), me = world.rank(), left = (me + p - 1) % p;
  for (auto const& format : formats) {
    Bits out(77), in(77);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint16_t>(me * 100 + static_cast<int>(i));
    world.reset_accounting();
    auto incoming = world.recv(in.data(), 77, format.type, left, 1);
    world.send(out.data(), 77, format.type, (me + 1) % p, 1).wait();
    incoming.wait();
    EXPECT_EQ(world.accounting().bytes, 2 * 77 * 2);
    for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i], left * 100 + static_cast<int>(i));
    Bits all(77 * static_cast<std::size_t>(p));
    world.all_gather(out.data(), all.data(), 77, format.type).wait();
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i / 77 * 100 + i % 77));
  }
}

}  // namespace
