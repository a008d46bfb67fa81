// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door to the device for kernels. Kokkos hands functors of 512 bytes and more to CUDA through constant memory,
// and waits for the kernel before to end before it overwrites that: the host would never be more than a few kernels
// ahead. What this door launches goes as arguments of the kernel, of which CUDA takes 4 KB, and waits for nothing.

#include <p3d/device/view.hpp>

#include <cstdint>
#include <string>

namespace p3d::device {

/// CUDA's limit less what Kokkos adds to the functor (its policy).
inline constexpr std::size_t most_functor_bytes = 4096 - 512;

/// Kernels that went through this door so far: tests compare it with what Kokkos' hooks report.
inline std::int64_t launches = 0;

namespace detail {
template <class Functor, class Policy>
auto light(Policy const& policy) {
  static_assert(sizeof(Functor) <= most_functor_bytes,
                "the functor is passed as an argument of the kernel: give it less to carry, or a pointer to it");
  ++launches;
  return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}
}  // namespace detail

/// Kokkos::parallel_for.
template <class Policy, class Functor>
void launch_kernel(std::string const& label, Policy const& policy, Functor const& functor) {
  Kokkos::parallel_for(label, detail::light<Functor>(policy), functor);
}
/// Kokkos::parallel_reduce into `result`.
template <class Policy, class Functor, class Result>
void launch_reduce(std::string const& label, Policy const& policy, Functor const& functor, Result&& result) {
  Kokkos::parallel_reduce(label, detail::light<Functor>(policy), functor, result);
}
/// Kokkos::parallel_scan.
template <class Policy, class Functor>
void launch_scan(std::string const& label, Policy const& policy, Functor const& functor) {
  Kokkos::parallel_scan(label, detail::light<Functor>(policy), functor);
}

}  // namespace p3d::device
