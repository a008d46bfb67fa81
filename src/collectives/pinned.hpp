// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory for messages of views that MPI is not given: pinned where there is a GPU, and kept for the next message,
// because pinning takes longer than most messages.

#include <p3d/device/event.hpp>

#include <cstddef>
#include <memory>

namespace p3d::collectives::detail {

/// At least `bytes` bytes; they go back to the pool with the last copy of the pointer. All is freed when Kokkos ends.
std::shared_ptr<std::byte> pinned(std::size_t bytes);
/// Keeps a block from the pool until `read`: the device still copies from it.
void keep_until(device::Event read, std::shared_ptr<std::byte> block);

}  // namespace p3d::collectives::detail
