// SPDX-License-Identifier: Apache-2.0
#pragma once
// Views and execution space. Everything that p3d computes on is row-major (LayoutRight) in the memory of the default
// execution space. Kernels take unmanaged views: an arena or an owning view has the memory.

#include <p3d/device/compat.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

namespace p3d::device {

using ExecSpace = Kokkos::DefaultExecutionSpace;
using MemSpace = ExecSpace::memory_space;
using HostSpace = Kokkos::HostSpace;

/// True when host code must not touch Views although it could; guard.hpp says why.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool memory_is_guarded = std::is_same_v<MemSpace, HostSpace>;
#else
inline constexpr bool memory_is_guarded = false;
#endif
/// True when host code, and an MPI library that does not know GPUs, may read and write Views.
inline constexpr bool host_reaches_views =
    Kokkos::SpaceAccessibility<HostSpace, MemSpace>::accessible && !memory_is_guarded;

/// Unmanaged views [n] and [rows, cols]. View1<T> converts to View1<T const>; name T explicitly when calling a
/// template.
template <class T>
using View1 = Kokkos::View<T*, Kokkos::LayoutRight, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using View2 = Kokkos::View<T**, Kokkos::LayoutRight, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Owning views, for set-up and tests.
template <class T>
using Owned1 = Kokkos::View<T*, Kokkos::LayoutRight, MemSpace>;
template <class T>
using Owned2 = Kokkos::View<T**, Kokkos::LayoutRight, MemSpace>;

/// Columns [begin, end) of a matrix, with the matrix's row stride.
template <class T>
View2<T> columns(View2<T> m, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(m, Kokkos::ALL, Kokkos::pair<std::int64_t, std::int64_t>(begin, end));
}
/// Rows [begin, end) of a matrix whose rows are contiguous.
template <class T>
View2<T> rows(View2<T> m, std::int64_t begin, std::int64_t end) {
  return View2<T>(m.data() + begin * m.stride(0), end - begin, m.extent(1));
}
/// The elements of a contiguous matrix as one vector.
template <class T>
View1<T> flat(View2<T> m) {
  return View1<T>(m.data(), m.extent(0) * m.extent(1));
}

}  // namespace p3d::device
