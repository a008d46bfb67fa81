// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of 16-bit numbers widened to float, by the processor's own conversion where it has one.

#include <cstdint>

#include "gemm16.hpp"

namespace p3d::linalg::detail {

/// Widens `count` numbers.
using WidenRow = void (*)(std::uint16_t const* from, std::int64_t count, float* to);
/// The quickest function for this processor.
WidenRow widen_row(Type16 type);

}  // namespace p3d::linalg::detail
