// Column and row ranges look at the same memory with the same row stride, and stay row-major.

#include <p3d/device/view.hpp>

#include <gtest/gtest.h>

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

TEST(View, FenceWorksWithEveryKokkos) {
  device::ExecSpace const exec;
  device::fence(exec, "p3d::test::fence");
}
