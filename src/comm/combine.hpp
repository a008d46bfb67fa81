// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of reductions on host memory.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace p3d::comm::detail {

/// Reduces arrays: out[k][i] = ((in[0][i] op in[1][i]) op in[2][i]) op ..., always in this order, for every output k.
/// Each output may be one of the inputs. 16-bit numbers are widened to float, and the result of all inputs is rounded
/// once.
void combine(ElementType type, Reduction op, std::span<std::byte* const> out, std::span<std::byte const* const> in,
             std::int64_t count);

}  // namespace p3d::comm::detail
