// SPDX-License-Identifier: Apache-2.0
#pragma once
// A check that host code leaves device memory alone, for builds where both are the same memory. In builds with the
// address sanitizer and a host backend, the memory that kernels work on is poisoned while no kernel and no copy runs.
// Host code that touches it, which on a GPU would be a crash or garbage, then ends the program with the sanitizer's
// report. Host copies are poisoned while kernels run. What nobody may read any more can be made unusable, so that a
// result from it shows. In other builds nothing is checked.

#include <p3d/device/event.hpp>
#include <p3d/device/pinned.hpp>
#include <p3d/device/view.hpp>

#include <cstring>
#include <span>

namespace p3d::device {

/// Starts the checks, once, with Kokkos running and before the first View. A View labelled "p3d::..." is device memory,
/// unless its label has "host" or "pinned" in it: then it is a host copy. A View with "background" in its label is not
/// guarded, since threads read it while kernels run.
void guard_memory();

/// In builds that guard memory: writes the byte 255 everywhere in `view`, in the order of the kernels of `exec`. That
/// is NaN in every type of floating-point numbers, and an index of -1. In other builds it does nothing.
template <class V>
void make_unusable(ExecSpace const& exec, V const& view) {
  if constexpr (memory_is_guarded) {
    View1<unsigned char> const bytes(reinterpret_cast<unsigned char*>(view.data()),
                                     view.span() * sizeof(typename V::value_type));
    if (bytes.size() > 0) Kokkos::deep_copy(exec, bytes, 255);
  }
}

/// New host memory with the shape of a row-major vector or matrix.
template <class V>
auto new_host_view(V const& view) {
  using Host = Kokkos::View<typename V::non_const_data_type, Kokkos::LayoutRight, HostSpace>;
  if constexpr (static_cast<int>(V::rank) == 1) {
    return Host("p3d::device::host_mirror", view.extent(0));
  } else {
    return Host("p3d::device::host_mirror", view.extent(0), view.extent(1));
  }
}

/// Host memory with the shape of `view`: `view` itself where the host may use it, else new memory. The contents are not
/// copied.
template <class V>
auto host_mirror(V const& view) {
  if constexpr (memory_is_guarded) {
    return new_host_view(view);
  } else {
    return Kokkos::create_mirror_view(HostSpace(), view);
  }
}

/// A host copy of `view`, taken once all kernels of the device have ended: for tests and set-up.
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
/// A host copy of `view`, taken once the kernels of `exec` have ended; other work of the device is not waited for. The
/// wait has the label.
template <class V>
auto copy_to_host(std::string const& label, ExecSpace const& exec, V const& view) {
  if constexpr (host_reaches_views) {
    fence(exec, label);
    return host_mirror(view);
  } else {
    auto const host = new_host_view(view);
    Kokkos::deep_copy(exec, host, view);
    fence(exec, label);
    return host;
  }
}

/// Copies host numbers to the first elements of `to`, in the order of the kernels of `exec`. `from` may change after
/// the call, and the host does not wait.
template <class T>
void copy_from_host(ExecSpace const& exec, std::span<T const> from, View1<T> to) {
  using Host = Kokkos::View<T const*, PinnedSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  View1<T> const first(to.data(), from.size());
  if constexpr (host_reaches_views) {
    Kokkos::deep_copy(exec, first, Host(from.data(), from.size()));
  } else if (!from.empty()) {
    auto const block = pinned_block(from.size_bytes());
    std::memcpy(block.get(), from.data(), from.size_bytes());
    Kokkos::deep_copy(exec, first, Host(reinterpret_cast<T const*>(block.get()), from.size()));
    keep_until(Event(exec), block);
  }
}

}  // namespace p3d::device
