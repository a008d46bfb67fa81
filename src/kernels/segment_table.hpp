// SPDX-License-Identifier: Apache-2.0
#pragma once
// A table of many segments of a vector for one launch. The segments are cut into blocks of elements; none crosses a
// segment. Example: segments of 10 and 5 elements in blocks of 4 give blocks 0, 1, 2 (4, 4 and 2 elements) and 3, 4 (4
// and 1).

#include <p3d/kernels/common.hpp>

#include <cstdint>

namespace p3d::kernels {

/// The segments of one launch with a Value each. The table is passed by value: it need not be copied to the device.
template <class Value>
struct SegmentTable {
  static constexpr int most = 64;
  Value value[most];
  std::int64_t begin[most], end[most];
  std::int64_t size[most];             ///< elements of a block of each segment
  std::int64_t first_block[most + 1];  ///< number of each segment's first block; the number of all blocks at the end
  int count;

  void clear() { first_block[count = 0] = 0; }
  bool full() const { return count == most; }
  std::int64_t blocks() const { return first_block[count]; }
  /// Appends elements [from, from + n), n > 0, in blocks of `block_size`.
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
  /// The first element of a block of a segment, in the vector.
  KOKKOS_INLINE_FUNCTION std::int64_t begin_of(int segment, std::int64_t block) const {
    return begin[segment] + (block - first_block[segment]) * size[segment];
  }
};

}  // namespace p3d::kernels
