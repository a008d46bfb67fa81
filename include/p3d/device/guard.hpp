// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host and device memory kept apart where they are one. In builds with the address sanitizer and a host backend, the
// memory that kernels work on is poisoned while no kernel and no copy runs: host code that touches it, which on a GPU
// would be a crash or garbage, ends the program with the sanitizer's report. Host copies are poisoned while kernels
// run. Elsewhere this is nothing.

#include <p3d/device/view.hpp>

#include <span>

namespace p3d::device {

/// Starts, once, with Kokkos running and before the first View. Device memory: Views labelled "p3d::...", but for those
/// whose label has "host" or "pinned" in it, which are host copies. Not guarded: those with "background" in it, which
/// threads read while kernels run.
void guard_memory();

/// Host memory of the shape of a row-major vector or matrix.
template <class V>
auto new_host_view(V const& view) {
  using Host = Kokkos::View<typename V::non_const_data_type, Kokkos::LayoutRight, HostSpace>;
  if constexpr (static_cast<int>(V::rank) == 1) {
    return Host("p3d::device::host_mirror", view.extent(0));
  } else {
    return Host("p3d::device::host_mirror", view.extent(0), view.extent(1));
  }
}

/// Memory of the host with the shape of `view`: `view` itself where the host may use it.
template <class V>
auto host_mirror(V const& view) {
  if constexpr (memory_is_guarded) {
    return new_host_view(view);
  } else {
    return Kokkos::create_mirror_view(HostSpace(), view);
  }
}

/// The same with the contents of `view`, after all kernels.
template <class V>
auto host_copy(V const& view) {
  if constexpr (memory_is_guarded) {
    auto const host = new_host_view(view);
    Kokkos::deep_copy(host, view);
    return host;
  } else {
    return Kokkos::create_mirror_view_and_copy(HostSpace(), view);
  }
}

/// Copies host numbers to the first elements of `to`. Waits.
template <class T>
void copy_from_host(std::span<T const> from, View1<T> to) {
  Kokkos::View<T const*, HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const host(from.data(), from.size());
  Kokkos::deep_copy(View1<T>(to.data(), from.size()), host);
}

}  // namespace p3d::device
