// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout masks as factors.

#include "numeric.hpp"

namespace p3d::kernels {

/// factor[i * stride] = scale where element first + i of `stream` is kept, else 0, for i in [0, n). Draws each block of
/// four words once.
template <class T>
KOKKOS_INLINE_FUNCTION void keep_factors(Dropout const& dropout, std::uint64_t stream, std::uint64_t first, int n,
                                         T* factor, int stride = 1) {
  T const scale = static_cast<T>(dropout.scale);
  int i = -static_cast<int>(first % 4);
  for (std::uint64_t block = first / 4; i < n; ++block, i += 4) {
    auto const words = base::random_block(dropout.key, stream, block);
    for (int j = 0; j < 4; ++j)
      if (i + j >= 0 && i + j < n) factor[(i + j) * stride] = words.w[j] >= dropout.threshold ? scale : T(0);
  }
}

}  // namespace p3d::kernels
