// SPDX-License-Identifier: Apache-2.0
// A kernel reads the views that it was given, and the host compares. nvcc compiles a kernel twice, by the host's
// compiler and by its own, and both must lay out Kokkos::View alike. They once did not (nvcc 13.0 with GCC 12 and a
// Kokkos between 4.6 and 4.7, whose views have members that take no room): kernels then used wild addresses, or
// quietly wrong extents.

#include <p3d/base/error.hpp>
#include <p3d/device/launch.hpp>
#include <p3d/device/view_layout.hpp>

#include <fmt/ranges.h>

namespace p3d::device {

namespace {

/// The kernel. The address of the result is its first member, whose place both compilers agree on.
struct ReadViews {
  std::int64_t* out;
  View1<float> line;
  std::int64_t after_line;
  View2<double> table;
  std::int64_t after_table;

  KOKKOS_INLINE_FUNCTION void operator()(int) const { read(out); }
  KOKKOS_INLINE_FUNCTION static std::int64_t address(void const* p) { return reinterpret_cast<std::intptr_t>(p); }
  KOKKOS_INLINE_FUNCTION void read(std::int64_t* to) const {
    to[0] = static_cast<std::int64_t>(line.extent(0));
    to[1] = address(line.data() + 1);
    to[2] = after_line;
    to[3] = static_cast<std::int64_t>(table.extent(0));
    to[4] = static_cast<std::int64_t>(table.extent(1));
    to[5] = address(table.data() + table.stride(0) + 2);  // the host may not ask for table(1, 2)
    to[6] = after_table;
  }
};

}  // namespace

ViewFacts view_facts_of_host_and_device() {
  constexpr std::size_t n = ViewFacts::count;
  ExecSpace const exec;
  Owned1<std::int64_t> const found("p3d::device::view_layout", n);
  // Addresses are computed, and nothing is stored behind them.
  auto* const somewhere = reinterpret_cast<char*>(found.data());
  ReadViews const views{found.data(), View1<float>(reinterpret_cast<float*>(somewhere), 11), 12,
                        View2<double>(reinterpret_cast<double*>(somewhere), 13, 14), 15};
  launch_kernel("p3d::device::view_layout", Kokkos::RangePolicy<ExecSpace>(exec, 0, 1), views);
  ViewFacts facts;
  views.read(facts.host.data());
  Kokkos::View<std::int64_t*, HostSpace> const copy("p3d::device::view_layout_host", n);
  Kokkos::deep_copy(exec, copy, found);
  fence(exec, "p3d::device::view_layout");
  for (std::size_t i = 0; i < n; ++i) facts.device[i] = copy(i);
  return facts;
}

void require_one_view_layout(ViewFacts const& facts) {
  if (facts.host == facts.device) return;
  base::refuse({.expected = "a Kokkos whose views are the same to kernels and to the host",
                .found = fmt::format("numbers {} on the host, {} in a kernel", fmt::join(facts.host, " "),
                                     fmt::join(facts.device, " ")),
                .where = "the start of Kokkos",
                .fix =
                    "build Kokkos with -DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON (4.6, 4.7), or take another release of it "
                    "or of the compiler"});
}

}  // namespace p3d::device
