// SPDX-License-Identifier: Apache-2.0
#pragma once
// For tests of swap files: file systems that can less, and disks that are slow.

#include <cstdint>
#include <functional>

namespace p3d::device::detail {

/// Read by swap files that are made afterwards.
struct SwapHooks {
  bool unnamed = true;  ///< O_TMPFILE is tried
  bool direct = true;   ///< O_DIRECT is tried
  /// Free bytes that the file system has at most.
  std::int64_t free_bytes = INT64_MAX;
  /// Called by the thread before each piece that it reads or writes.
  std::function<void()> before_piece;
};
SwapHooks& swap_hooks();

}  // namespace p3d::device::detail
