// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many segments of a vector in one launch: blocks of elements, none of which crosses a segment.

#include <p3d/kernels/common.hpp>

#include <cstdint>

namespace p3d::kernels {

/// Segments of one launch with a Value each, passed by value: no table has to be copied to the device.
template <class Value>
struct SegmentTable {
  static constexpr int most = 64;
  Value value[most];
  std::int64_t begin[most], end[most];
  std::int64_t size[most];             ///< of a block
  std::int64_t first_block[most + 1];  ///< and the number of all blocks at the end
  int count;

  void clear() { first_block[count = 0] = 0; }
  bool full() const { return count == most; }
  std::int64_t blocks() const { return first_block[count]; }
  /// Elements [from, from + n), n > 0, in blocks of `block_size`.
  void add(std::int64_t from, std::int64_t n, std::int64_t block_size, Value const& v) {
    int const at = count++;
    value[at] = v;
    begin[at] = from;
    end[at] = from + n;
    size[at] = block_size;
    first_block[count] = first_block[at] + (n + block_size - 1) / block_size;
  }
  /// The segment that a block belongs to.
  KOKKOS_INLINE_FUNCTION int of_block(std::int64_t block) const {
    int low = 0, high = count;  // first_block[low] <= block < first_block[high]
    while (high - low > 1) {
      int const middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
  /// Its first element.
  KOKKOS_INLINE_FUNCTION std::int64_t begin_of(int segment, std::int64_t block) const {
    return begin[segment] + (block - first_block[segment]) * size[segment];
  }
};

}  // namespace p3d::kernels
