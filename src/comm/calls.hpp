#pragma once
// Counts: the MPI-4 calls take 64 bits; before MPI 4 a count is an int and a longer message is sent in parts.
// P3D_NO_LARGE_COUNT compiles the second kind against an MPI-4 library, to test it.

#include <mpi.h>

#include <cstdint>
#include <limits>

#if MPI_VERSION >= 4 && !defined(P3D_NO_LARGE_COUNT)
#define P3D_MPI_COUNT(function) function##_c
#else
#define P3D_MPI_COUNT(function) function
#endif

namespace p3d::comm::detail {

#if MPI_VERSION >= 4 && !defined(P3D_NO_LARGE_COUNT)
using Count = MPI_Count;
#else
using Count = int;
#endif
inline constexpr std::int64_t largest_count = std::numeric_limits<Count>::max();

/// Elements that one MPI call may carry: largest_count unless a test has asked for less.
std::int64_t count_limit();

/// Calls body(begin, length) for consecutive parts of [0, count); once with length 0 when count is 0.
template <class Body>
void for_each_part(std::int64_t count, Body&& body) {
  std::int64_t const limit = count_limit();
  std::int64_t begin = 0;
  do {
    std::int64_t const length = count - begin < limit ? count - begin : limit;
    body(begin, static_cast<Count>(length));
    begin += length;
  } while (begin < count);
}

}  // namespace p3d::comm::detail
