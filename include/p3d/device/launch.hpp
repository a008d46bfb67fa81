// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one way by which kernels are launched on the device. Kokkos passes functors of 512 bytes and more to CUDA through
// constant memory, and waits for the kernel before to end before it overwrites that: the host would never be more than
// a few kernels ahead. These functions pass the functor as an argument of the kernel, of which CUDA takes 4 KB, and
// wait for nothing.

#include <p3d/device/view.hpp>

#include <cstdint>
#include <string>

namespace p3d::device {

/// The largest functor in bytes: CUDA's limit less the policy that Kokkos adds to the functor.
inline constexpr std::size_t most_functor_bytes = 4096 - 512;

/// The number of kernels that were launched in this way so far. Tests compare it with the number that Kokkos' hooks
/// report.
inline std::int64_t launches = 0;

/// The policy with Kokkos' hint that makes the functor a kernel argument. The functor's size is checked and the launch
/// counted.
namespace detail {
template <class Functor, class Policy>
auto light(Policy const& policy) {
  static_assert(sizeof(Functor) <= most_functor_bytes,
                "the functor is passed as an argument of the kernel: give it less to carry, or a pointer to it");
  ++launches;
  return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}
}  // namespace detail

/// Calls Kokkos::parallel_for.
template <class Policy, class Functor>
void launch_kernel(std::string const& label, Policy const& policy, Functor const& functor) {
  Kokkos::parallel_for(label, detail::light<Functor>(policy), functor);
}
/// Calls Kokkos::parallel_reduce into `result`.
template <class Policy, class Functor, class Result>
void launch_reduce(std::string const& label, Policy const& policy, Functor const& functor, Result&& result) {
  Kokkos::parallel_reduce(label, detail::light<Functor>(policy), functor, result);
}
/// Calls Kokkos::parallel_scan.
template <class Policy, class Functor>
void launch_scan(std::string const& label, Policy const& policy, Functor const& functor) {
  Kokkos::parallel_scan(label, detail::light<Functor>(policy), functor);
}

}  // namespace p3d::device
