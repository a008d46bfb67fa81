// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every difference between Kokkos 3.4 and 5.x that p3d meets, in one place.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>

namespace p3d::device {

/// Command-line options of Kokkos, which were renamed in 4.0.
#if KOKKOS_VERSION >= 40000
inline constexpr char const* threads_option = "--kokkos-num-threads";
inline constexpr char const* device_option = "--kokkos-device-id";
#else
inline constexpr char const* threads_option = "--kokkos-threads";
inline constexpr char const* device_option = "--kokkos-device";
#endif

/// Host memory that GPUs copy from and to quickly; ordinary memory where there is no GPU, and before Kokkos 4.0.
#if defined(KOKKOS_HAS_SHARED_HOST_PINNED_SPACE)
using PinnedSpace = Kokkos::SharedHostPinnedSpace;
#else
using PinnedSpace = Kokkos::HostSpace;
#endif

/// The number of the GPU in use among those visible, or -1.
inline int gpu_number() {
#if KOKKOS_VERSION >= 40100
  return Kokkos::device_id();
#else
  return -1;
#endif
}

namespace detail {

/// fence() calls this before it blocks; null: it calls nothing.
inline void (*before_fence)() = nullptr;

/// Calls exec.fence(label) and reports it to Kokkos' tools. Kokkos has labels of fences from 3.5 on; before that this
/// function tells the tools itself.
template <class Exec>
void fence_now(Exec const& exec, std::string const& label) {
#if KOKKOS_VERSION >= 30500
  exec.fence(label);
#else
  std::uint64_t number = 0;
  Kokkos::Tools::beginFence(label, 0, &number);
  exec.fence();
  Kokkos::Tools::endFence(number);
#endif
}

}  // namespace detail

/// Sets what fence() calls before it blocks. A stream may wait for other ranks, and only the call that is set here can
/// limit that wait. Null: nothing is called.
inline void set_before_fence(void (*call)()) { detail::before_fence = call; }

/// Waits on the host for all that `exec` was given. Called by the main thread.
template <class Exec>
void fence(Exec const& exec, std::string const& label) {
  if (detail::before_fence != nullptr) detail::before_fence();
  detail::fence_now(exec, label);
}

}  // namespace p3d::device
