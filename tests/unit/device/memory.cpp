// SPDX-License-Identifier: Apache-2.0
// Large arrays are zeros of the length asked for, and Linux was asked for huge pages under them, nowhere else. Pinned
// memory is there until its last pointer goes. A build for GPUs does not start without one.

#include <p3d/device/environment.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/device/pinned.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace device = p3d::device;

/// Not in a TEST's body: a compiler for devices wants its lambdas in functions that are not private.
std::int64_t count_zeros(device::View1<float const> array) {
  std::int64_t sum = 0;
  Kokkos::parallel_reduce(
      "p3d::test::zeros", Kokkos::RangePolicy<device::ExecSpace>(0, static_cast<std::int64_t>(array.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t & s) { s += array(i) == 0.0f ? 1 : 0; }, sum);
  return sum;
}

namespace {

/// Whether the mapping around `address` has the flag "hg" (MADV_HUGEPAGE) in /proc/self/smaps.
bool wants_huge_pages(void const* address) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      auto const place = reinterpret_cast<std::uintptr_t>(address);
      here = begin <= place && place < end;
    } else if (here && line.rfind("VmFlags:", 0) == 0) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

}  // namespace

TEST(Memory, LargeArraysAreZeros) {
  for (std::int64_t n : {std::int64_t{0}, std::int64_t{5}, std::int64_t{(8 << 20) + 3}}) {
    auto const array = device::large_array<float>("p3d::test::array", n);
    ASSERT_EQ(array.extent(0), static_cast<std::size_t>(n));
    EXPECT_EQ(count_zeros(array), n);
  }
}

TEST(Memory, LinuxIsAskedForHugePages) {
  if (!std::is_same_v<device::MemSpace, device::HostSpace>) GTEST_SKIP() << "memory of a device";
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"))
    GTEST_SKIP() << "this system has no transparent huge pages";
  auto const large = device::large_array<float>("p3d::test::large", 8 << 20);
  EXPECT_TRUE(wants_huge_pages(large.data() + large.extent(0) / 2));
  auto const small = device::large_array<float>("p3d::test::small", 1 << 16);
  EXPECT_FALSE(wants_huge_pages(small.data()));
}

TEST(Environment, WithoutAGpuNothingStarts) {
  // Kokkos runs already: an Environment that went on would end the test in Kokkos' own error.
  int argc = 0;
  auto const start = [&](device::VisibleGpus const& gpus) { device::Environment const e(argc, nullptr, 1, 0, gpus); };
  device::VisibleGpus gpus{.needed = true, .count = 0, .problem = "no CUDA-capable device is detected"};
  p3d::test::expect_error([&] { start(gpus); }, "a GPU that this process may use");
  p3d::test::expect_error([&] { start(gpus); }, "none: no CUDA-capable device is detected");
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  p3d::test::expect_error([&] { start(gpus); }, "CUDA_VISIBLE_DEVICES=\"7\"");
  unsetenv("CUDA_VISIBLE_DEVICES");
  try {
    start(gpus);
    ADD_FAILURE() << "it starts";
  } catch (p3d::base::Error const& e) {
    EXPECT_EQ(e.code(), p3d::base::ExitCode::bad_input);
  }
  gpus.count = 1;
  EXPECT_NO_THROW(device::require_gpu(gpus));
  if (device::on_host()) {
    EXPECT_FALSE(device::visible_gpus().needed);
    EXPECT_NO_THROW(device::require_gpu(device::visible_gpus()));
  }
}

TEST(Memory, PinnedMemoryLivesWithItsPointers) {
  constexpr std::size_t bytes = 100003;
  auto first = device::pinned_memory(bytes, "p3d::test::pinned");
  auto const second = first;
  std::memset(first.get(), 7, bytes);
  first.reset();
  EXPECT_EQ(std::count(second.get(), second.get() + bytes, std::byte{7}), static_cast<std::ptrdiff_t>(bytes));
}
