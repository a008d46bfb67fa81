// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cutting counts into parts. Long operations go in parts of at most 1 GiB, which work with every library and cost
// nothing that can be measured. The MPI-4 large-count calls are no way out yet: MPICH 4.0.2, which distributions ship,
// fails in MPI_Ibcast_c beyond 2^31 bytes ("Invalid communicator"), and an MPI-3 library has none.

#include <algorithm>
#include <cstdint>

namespace p3d::comm::detail {

/// The number of elements that one MPI call may carry, over all its blocks: 1 GiB, unless a test has asked for less. It
/// fits an int.
std::int64_t elements_per_call(std::int64_t bytes_each);

/// A run of elements.
struct Range {
  std::int64_t begin = 0, count = 0;
};

/// Piece k when `count` elements are cut into `pieces`: as even as whole multiples of `unit` allow, except for the
/// last.
inline Range piece_of(std::int64_t count, std::int64_t k, std::int64_t pieces, std::int64_t unit = 1) {
  std::int64_t const units = (count + unit - 1) / unit;
  auto const begin = [&](std::int64_t i) {
    return std::min(count, (units / pieces * i + std::min(i, units % pieces)) * unit);
  };
  return {begin(k), begin(k + 1) - begin(k)};
}

/// Elements that rank r of p gives to others in an all-reduce with even shares: the other shares to their owners, and
/// its own sum to each of them.
inline std::int64_t even_traffic(std::int64_t count, int rank, int num_ranks) {
  std::int64_t const own = piece_of(count, rank, num_ranks).count;
  return count - own + own * (num_ranks - 1);
}

/// Calls body(begin, length) for consecutive parts of [0, count), each at most `limit` long; once with length 0 when
/// `count` is 0.
template <class Body>
void for_each_part(std::int64_t count, std::int64_t limit, Body&& body) {
  std::int64_t begin = 0;
  do {
    std::int64_t const length = count - begin < limit ? count - begin : limit;
    body(begin, static_cast<int>(length));
    begin += length;
  } while (begin < count);
}

}  // namespace p3d::comm::detail
