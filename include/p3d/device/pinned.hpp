// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory that GPUs copy from and to at the speed of the bus: pinned where there is a GPU, ordinary elsewhere.
// (Copies of other memory go through buffers of the driver.) Pinning takes time: this is for memory that lives long.

#include <p3d/device/event.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace p3d::device {

/// `bytes` bytes, untouched; freed with the last copy of the pointer. Kokkos runs meanwhile. Throws std::bad_alloc or
/// Kokkos' error when there is not enough.
std::shared_ptr<std::byte> pinned_memory(std::size_t bytes, std::string const& label);

/// At least `bytes` bytes of a pool, kept for the next of their size because pinning takes longer than most copies;
/// they go back to it with the last copy of the pointer. All is freed when Kokkos ends. One thread comes here.
std::shared_ptr<std::byte> pinned_block(std::size_t bytes);
/// Keeps a block from the pool until `read`: the device still copies from it.
void keep_until(Event read, std::shared_ptr<std::byte> block);

}  // namespace p3d::device
