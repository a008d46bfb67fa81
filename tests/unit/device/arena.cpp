// SPDX-License-Identifier: Apache-2.0
// The arena hands out aligned, disjoint pieces and says what was missing.

#include <p3d/base/error.hpp>
#include <p3d/device/arena.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

using p3d::device::Arena;

TEST(Arena, PiecesAreAlignedAndDisjoint) {
  Arena arena(1000, "test");
  EXPECT_EQ(arena.capacity(), 1024u);
  auto const a = arena.take<float>(3);
  auto const b = arena.take<double>(4, 5);
  auto const c = arena.take<float>(1);
  for (void const* p :
       {static_cast<void const*>(a.data()), static_cast<void const*>(b.data()), static_cast<void const*>(c.data())})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % Arena::alignment, 0u);
  EXPECT_EQ(reinterpret_cast<char*>(b.data()) - reinterpret_cast<char*>(a.data()), 64);
  EXPECT_EQ(reinterpret_cast<char*>(c.data()) - reinterpret_cast<char*>(b.data()), 192);
  EXPECT_EQ(b.extent(0), 4u);
  EXPECT_EQ(b.extent(1), 5u);
  EXPECT_EQ(b.stride(0), 5u);
  EXPECT_EQ(arena.used(), 64u + 192u + 64u);
}

TEST(Arena, CanBeFilledToTheLastByteAndNoFurther) {
  Arena arena(256, "activations");
  auto* const p = static_cast<std::byte*>(arena.take_bytes(256));
  Kokkos::deep_copy(p3d::device::View1<std::byte>(p, 256), std::byte{7});  // under a sanitizer: must lie inside
  try {
    (void)arena.take_bytes(1);
    FAIL() << "a full arena handed out a piece";
  } catch (p3d::base::Error const& error) {
    EXPECT_NE(error.text().expected.find("activations"), std::string::npos) << error.what();
    EXPECT_NE(error.text().expected.find("1 bytes"), std::string::npos) << error.what();
    EXPECT_NE(error.text().found.find("0 of 256"), std::string::npos) << error.what();
  }
  EXPECT_EQ(arena.used(), 256u) << "a refused request must not change the arena";
}

TEST(Arena, HugeRequestsDoNotWrapRound) {
  Arena arena(256, "test");
  p3d::test::expect_error([&] { (void)arena.take_bytes(std::numeric_limits<std::size_t>::max() - 8); },
                          "256 of 256 bytes left");
}

TEST(Arena, NothingIsAPieceToo) {
  Arena arena(0, "empty");
  EXPECT_EQ(arena.take<float>(0).extent(0), 0u);
  p3d::test::expect_error([&] { (void)arena.take<float>(1); }, "room for 4 bytes in arena 'empty'");
}
