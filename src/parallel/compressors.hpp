// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kinds of compression that have a file of their own.

#include <p3d/parallel/compression.hpp>

#include <cstdint>
#include <memory>

namespace p3d::parallel {

/// Bytes of an array.
template <class V>
std::int64_t bytes_in(V const& array) {
  return static_cast<std::int64_t>(array.extent(0) * sizeof(typename V::value_type));
}

/// The kind of comm.compress = "powersgd" (low_rank.cpp).
template <class T>
std::unique_ptr<GradientCompressor<T>> make_low_rank(device::ExecSpace const& exec, layout::Compression plan,
                                                     layout::StageParams const& params, device::View1<T> gradients,
                                                     CompressionGroups const& groups, std::uint64_t seed);

}  // namespace p3d::parallel
