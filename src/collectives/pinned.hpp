// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory for messages of views that MPI is not given.

#include <p3d/device/pinned.hpp>

namespace p3d::collectives::detail {

using device::keep_until;

/// At least `bytes` bytes of the pool.
inline std::shared_ptr<std::byte> pinned(std::size_t bytes) { return device::pinned_block(bytes); }

}  // namespace p3d::collectives::detail
