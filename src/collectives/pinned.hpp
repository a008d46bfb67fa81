// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory for messages of views whose address MPI is not given.

#include <p3d/device/pinned.hpp>

namespace p3d::collectives::detail {

using device::keep_until;

/// A block of at least `bytes` bytes from the pool of pinned memory.
inline std::shared_ptr<std::byte> pinned(std::size_t bytes) { return device::pinned_block(bytes); }

}  // namespace p3d::collectives::detail
