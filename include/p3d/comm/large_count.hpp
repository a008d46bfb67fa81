#pragma once
// Messages longer than one MPI call can carry.

#include <cstdint>

namespace p3d::comm {

/// The most elements that one MPI call is given; longer operations are split into several. By default what the library
/// can count: 2^63 - 1 with MPI 4, 2^31 - 1 before. Tests lower it to walk the splitting path with short messages. The
/// same on all ranks, and while no operation is under way; 0 restores the default.
void set_max_count_per_call(std::int64_t elements);

}  // namespace p3d::comm
