// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the callers of a vendor's library share.

#include <p3d/device/environment.hpp>
#include <p3d/device/view.hpp>

#include "gemm16.hpp"

namespace p3d::linalg::detail {

/// The stream of `exec` for the vendor's library, which gives its memory back before Kokkos ends.
inline void* vendor_stream(device::ExecSpace const& exec) {
  static bool const hooked = (Kokkos::push_finalize_hook(release_vendor), true);
  static_cast<void>(hooked);
  return device::native_stream(exec);
}

}  // namespace p3d::linalg::detail
