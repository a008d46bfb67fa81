// SPDX-License-Identifier: Apache-2.0
// Column and row ranges look at the same memory with the same row stride, and stay row-major. Fences wait, and tools
// hear of them.

#include <p3d/device/guard.hpp>
#include <p3d/device/view.hpp>
#include <p3d/device/view_layout.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace device = p3d::device;

TEST(View, RangesShareMemoryAndStride) {
  device::Owned2<double> owned("p3d::test::matrix", 4, 6);
  device::View2<double> const m = owned;
  auto const c = device::columns(m, 2, 5);
  EXPECT_EQ(c.extent(0), 4u);
  EXPECT_EQ(c.extent(1), 3u);
  EXPECT_EQ(c.stride(0), 6u);
  EXPECT_EQ(c.data(), m.data() + 2);
  auto const r = device::rows(m, 1, 3);
  EXPECT_EQ(r.extent(0), 2u);
  EXPECT_EQ(r.extent(1), 6u);
  EXPECT_EQ(r.data(), m.data() + 6);
  EXPECT_EQ(device::flat(r).extent(0), 12u);
  EXPECT_EQ(device::flat(r).data(), r.data());
}

TEST(View, IsTheSameToKernelsAndToTheHost) {
  auto facts = device::view_facts_of_host_and_device();
  EXPECT_EQ(facts.host, facts.device);
  EXPECT_EQ(facts.host[0], 11);
  EXPECT_EQ(facts.host[4], 14);
  device::require_one_view_layout(facts);
  facts.device[3] = 0;
  p3d::test::expect_error([&] { device::require_one_view_layout(facts); }, "-DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON");
}

/// What a tool hears. Its callbacks are plain functions.
struct Heard {
  std::vector<std::string> begun;
  int ended = 0;
};
Heard heard;

TEST(Fence, ToolsHearOfItOnceWithItsLabel) {
  namespace hooks = Kokkos::Tools::Experimental;
  device::ExecSpace const exec;
  auto const before = hooks::get_callbacks();
  heard = {};
  hooks::set_begin_fence_callback(
      [](char const* label, std::uint32_t, std::uint64_t*) { heard.begun.emplace_back(label); });
  hooks::set_end_fence_callback([](std::uint64_t) { ++heard.ended; });
  device::fence(exec, "p3d::test::fence");
  hooks::set_callbacks(before);
  EXPECT_EQ(heard.begun, std::vector<std::string>{"p3d::test::fence"});
  EXPECT_EQ(heard.ended, 1);
  device::fence(exec, "p3d::test::unheard");
  EXPECT_EQ(heard.ended, 1) << "the hooks are gone";
}

/// Not in a TEST's body: a compiler for devices wants its lambdas in functions that are not private.
void count_up(device::ExecSpace const& exec, device::View1<int> x) {
  Kokkos::parallel_for(
      "p3d::test::count", Kokkos::RangePolicy<device::ExecSpace>(exec, 0, static_cast<std::int64_t>(x.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) { x(i) = static_cast<int>(i); });
}

TEST(Fence, WaitsForTheKernelsBeforeIt) {
  constexpr int n = 1 << 20;
  device::ExecSpace const exec;
  device::Owned1<int> const x("p3d::test::x", n);
  count_up(exec, x);
  device::fence(exec, "p3d::test::fence");
  EXPECT_EQ(device::host_copy(x)(n - 1), n - 1);
}
