// SPDX-License-Identifier: Apache-2.0
// Works that interleave on one thread.

#include <p3d/base/strand.hpp>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

namespace {
using p3d::base::rest;
using p3d::base::interleave;

std::string order(int a, int b, int c) {
  std::string seen;
  auto const work = [&](char name, int turns) {
    return [&seen, name, turns] {
      for (int i = 0; i < turns; ++i) {
        seen += name;
        if (i + 1 < turns) rest();
      }
    };
  };
  interleave({work('a', a), work('b', b), work('c', c)});
  return seen;
}

TEST(Strand, TakesTurnsInOrder) {
  EXPECT_EQ(order(3, 3, 3), "abcabcabc");
  EXPECT_EQ(order(1, 4, 2), "abcbcbb");
  EXPECT_EQ(order(4, 1, 1), "abcaaa");
}

TEST(Strand, RestsNowhereElse) {
  rest();
  std::thread([] { EXPECT_EQ(order(2, 1, 1), "abca"); }).join();
}

// Numbers in registers and on stacks are as they were; and exceptions inside a work are its own business.
TEST(Strand, KeepsWhatAWorkHas) {
  double sums[2] = {};
  auto const work = [&](int k) {
    return [&sums, k] {
      double sum = 0, part[64];
      for (int i = 0; i < 10000; ++i) {
        for (int j = 0; j < 64; ++j) part[j] = (k + 1) * 1e-3 * j + i;
        rest();
        try {
          if (i % 100 == 0) throw i;
        } catch (int caught) {
          rest();
          EXPECT_EQ(caught, i);
        }
        for (double x : part) sum += x;
      }
      sums[k] = sum;
    };
  };
  interleave({work(0), work(1)});
  for (int k : {0, 1}) EXPECT_NEAR(sums[k], 64.0 * 10000 * 9999 / 2 + (k + 1) * 1e-3 * 2016 * 10000, 1e-3);
}

TEST(Strand, AnErrorEndsAllTurns) {
  int after = 0;
  for (int again = 0; again < 3; ++again)
    EXPECT_THROW(interleave({[&] {
                               rest();
                               throw std::runtime_error("one");
                             },
                             [&] {
                               rest();
                               ++after;
                             }}),
                 std::runtime_error);
  EXPECT_EQ(after, 0);
  EXPECT_EQ(order(2, 2, 1), "abcab");
}

TEST(Strand, HasRoomForDeepCalls) {
  struct Deep {
    static int call(int depth) {
      char volatile room[1024] = {};
      room[depth % 1024] = 1;
      return depth == 0 ? 0 : call(depth - 1) + room[depth % 1024];
    }
  };
  int sum = 0;
  interleave({[&] { sum = Deep::call(5000); }, [] { rest(); }});
  EXPECT_EQ(sum, 5000);
}

}  // namespace
