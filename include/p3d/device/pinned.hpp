// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory that GPUs copy from and to at the speed of the bus: pinned where there is a GPU, ordinary elsewhere.
// Copies of ordinary memory go through buffers of the driver. Pinning takes time, so this is for memory that lives
// long.

#include <p3d/device/event.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace p3d::device {

/// Allocates `bytes` bytes, not initialized. They are freed with the last copy of the pointer; Kokkos must be running
/// until then. Throws std::bad_alloc or Kokkos' error when there is not enough memory.
std::shared_ptr<std::byte> pinned_memory(std::size_t bytes, std::string const& label);

/// A block of at least `bytes` bytes from a pool. It returns to the pool with the last copy of the pointer and is used
/// again for requests of its size, because pinning takes longer than most copies. All blocks are freed when Kokkos
/// ends. Only one thread may call this.
std::shared_ptr<std::byte> pinned_block(std::size_t bytes);
/// Keeps a block out of the pool until the event `read` is reached, because the device still copies from it.
void keep_until(Event read, std::shared_ptr<std::byte> block);

}  // namespace p3d::device
