// SPDX-License-Identifier: Apache-2.0
#pragma once
// Long operations go in parts. The MPI-4 large-count calls are no way out yet: MPICH 4.0.2, which distributions ship,
// fails in MPI_Ibcast_c beyond 2^31 bytes ("Invalid communicator"), and an MPI-3 library has none. Parts of at most 1
// GiB work with every library and cost nothing that can be measured.

#include <cstdint>

namespace p3d::comm::detail {

/// Elements that one MPI call may carry, all its blocks together: 1 GiB, unless a test has asked for less. Fits an int.
std::int64_t elements_per_call(std::int64_t bytes_each);

/// Calls body(begin, length) for consecutive parts of [0, count), each at most `limit` long; once with length 0 when
/// count is 0.
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
