// SPDX-License-Identifier: Apache-2.0
#pragma once
// A check that the compilers of the host and of the device lay out Kokkos' views alike.

#include <p3d/device/view.hpp>

#include <array>
#include <cstdint>

namespace p3d::device {

/// Extents, addresses and neighbours of two views, as the host has them and as a kernel found them.
struct ViewFacts {
  static constexpr std::size_t count = 7;
  std::array<std::int64_t, count> host{}, device{};
};
/// Runs one small kernel. Kokkos must be running.
ViewFacts view_facts_of_host_and_device();
/// Throws base::Error (bad_input) where the two differ, which only another build of Kokkos mends.
void require_one_view_layout(ViewFacts const& facts);

}  // namespace p3d::device
