#pragma once
// The arithmetic of an all-reduce on host memory.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>

namespace p3d::comm::detail {

/// out[i] = ((in[0][i] op in[1][i]) op in[2][i]) op ..., always in this order. `out` may be one of the inputs. `copy`, unless
/// null, gets the same result.
void combine(Type type, Reduction op, std::byte* out, std::byte* copy, std::byte const* const* in, int inputs, std::int64_t count);

}  // namespace p3d::comm::detail
