// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory for messages of views that MPI is not given: pinned where there is a GPU, and kept for the next message,
// because pinning takes longer than most messages.

#include <cstddef>
#include <memory>

namespace p3d::collectives::detail {

/// At least `bytes` bytes; they go back to the pool with the last copy of the pointer. All is freed when Kokkos ends.
std::shared_ptr<std::byte> pinned(std::size_t bytes);

}  // namespace p3d::collectives::detail
