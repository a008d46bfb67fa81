// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory that GPUs copy from and to at the speed of the bus: pinned where there is a GPU, ordinary elsewhere.
// (Copies of other memory go through buffers of the driver.) Pinning takes time: this is for memory that lives long.

#include <cstddef>
#include <memory>
#include <string>

namespace p3d::device {

/// `bytes` bytes, untouched; freed with the last copy of the pointer. Kokkos runs meanwhile. Throws std::bad_alloc or
/// Kokkos' error when there is not enough.
std::shared_ptr<std::byte> pinned_memory(std::size_t bytes, std::string const& label);

}  // namespace p3d::device
