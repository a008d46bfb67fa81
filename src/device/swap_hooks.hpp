// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hooks for tests of swap files: file systems with fewer abilities, and disks that are slow.

#include <cstdint>
#include <functional>

namespace p3d::device::detail {

/// Settings that swap files read when they are made.
struct SwapHooks {
  bool unnamed = true;  ///< O_TMPFILE is tried
  bool direct = true;   ///< O_DIRECT is tried
  /// The free bytes that a file system is believed to have at most.
  std::int64_t free_bytes = INT64_MAX;
  /// Called by the thread before each piece that it reads or writes.
  std::function<void()> before_piece;
};
/// The hooks of this process.
SwapHooks& swap_hooks();

}  // namespace p3d::device::detail
