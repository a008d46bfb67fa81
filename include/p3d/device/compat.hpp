#pragma once
// Every difference between Kokkos 3.4 and 5.x that p3d meets, in one place.

#include <Kokkos_Core.hpp>

#include <string>

namespace p3d::device {

/// The command-line option that sets the number of host threads; renamed in 4.0.
#if KOKKOS_VERSION >= 40000
inline constexpr char const* threads_option = "--kokkos-num-threads";
#else
inline constexpr char const* threads_option = "--kokkos-threads";
#endif

/// exec.fence(label); labels exist from Kokkos 3.5 on.
template <class Exec>
void fence(Exec const& exec, [[maybe_unused]] std::string const& label) {
#if KOKKOS_VERSION >= 30500
  exec.fence(label);
#else
  exec.fence();
#endif
}

}  // namespace p3d::device
