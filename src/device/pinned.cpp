// SPDX-License-Identifier: Apache-2.0
#include <p3d/device/compat.hpp>
#include <p3d/device/pinned.hpp>

namespace p3d::device {

std::shared_ptr<std::byte> pinned_memory(std::size_t bytes, std::string const& label) {
  using Block = Kokkos::View<std::byte*, Kokkos::LayoutRight, PinnedSpace>;
  Block const block(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), bytes);
  return {block.data(), [block](std::byte*) {}};
}

}  // namespace p3d::device
