// SPDX-License-Identifier: Apache-2.0
// What device::guard_memory is for: the host must not touch device memory, nor a kernel a host copy, although both are
// the same here. In builds with the address sanitizer and a host backend.

#include <p3d/device/arena.hpp>
#include <p3d/device/guard.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace device = p3d::device;
using device::ExecSpace;

namespace {

/// 8 numbers on the device, and what a kernel and the host do to them.
struct Numbers {
  device::Owned1<double> view{"p3d::test::numbers", 8};
  void kernel(double const* from) const {
    auto const to = view;
    Kokkos::parallel_for(
        "p3d::test::kernel", Kokkos::RangePolicy<ExecSpace>(0, 8), KOKKOS_LAMBDA(int i) { to(i) = from[i] + 1.0; });
  }
};

}  // namespace

TEST(GuardDeathTest, HostCodeMayNotTouchDeviceMemory) {
  static_assert(device::memory_is_guarded && !device::host_reaches_views);
  Numbers const numbers;
  EXPECT_DEATH(static_cast<void>(*static_cast<double volatile*>(numbers.view.data())), "use-after-poison");
  EXPECT_DEATH(*static_cast<double volatile*>(numbers.view.data() + 7) = 1.0, "use-after-poison");
}

TEST(GuardDeathTest, KernelsMayNotTouchHostCopies) {
  Numbers const numbers;
  auto const host = device::host_mirror(numbers.view);
  EXPECT_DEATH(numbers.kernel(host.data()), "use-after-poison");
}

TEST(Guard, KernelsAndCopiesMayWork) {
  Numbers const numbers;
  auto host = device::host_copy(numbers.view);
  for (int i = 0; i < 8; ++i) host(i) = i;
  Kokkos::deep_copy(numbers.view, host);
  numbers.kernel(numbers.view.data());
  host = device::host_copy(numbers.view);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(host(i), i + 1.0);
}

TEST(Guard, MemoryIsFreeAfterItsLastView) {
  double* data = nullptr;
  {
    Numbers const numbers;
    data = numbers.view.data();
  }
  EXPECT_DEATH(static_cast<void>(*static_cast<double volatile*>(data)), "heap-use-after-free");
}

TEST(Guard, BothMayUseWhatThreadsRead) {
  device::Owned1<double> const shared("p3d::test::background", 8);
  for (int i = 0; i < 8; ++i) shared.data()[i] = i;
  Numbers const numbers;
  numbers.kernel(shared.data());
  EXPECT_EQ(device::host_copy(numbers.view)(7), 8.0);
}

// What an action may not read any more is NaN in every type of floating-point numbers.
TEST(Guard, WhatIsUnusableIsNaN) {
  Numbers const numbers;
  device::Owned1<float> const floats("p3d::test::floats", 3);
  device::make_unusable(device::ExecSpace(), numbers.view);
  device::make_unusable(device::ExecSpace(), floats);
  device::make_unusable(device::ExecSpace(), device::View1<double>());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(device::host_copy(numbers.view)(i)));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(device::host_copy(floats)(i)));
}

TEST(Guard, AnArenaBeginsUnusable) {
  device::Arena arena(64, "test");
  EXPECT_TRUE(std::isnan(device::host_copy(arena.take<double>(8))(7)));
}
