// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stream for calls of a vendor's library, for all its callers.

#include <p3d/device/environment.hpp>
#include <p3d/device/view.hpp>

#include "gemm16.hpp"

namespace p3d::linalg::detail {

/// The vendor's stream behind `exec`. The first call makes sure that the library frees its memory before Kokkos ends.
inline void* vendor_stream(device::ExecSpace const& exec) {
  static bool const hooked = (Kokkos::push_finalize_hook(release_vendor), true);
  static_cast<void>(hooked);
  return device::native_stream(exec);
}

}  // namespace p3d::linalg::detail
