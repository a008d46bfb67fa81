// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout masks as factors: 0 for a dropped element, 1 / (1 - rate) for a kept one.

#include "random_words.hpp"

namespace p3d::kernels {

/// factor[i * stride] = scale where element first + i of `stream` is kept, else 0, for i in [0, n).
template <class T>
KOKKOS_INLINE_FUNCTION void keep_factors(Dropout const& dropout, std::uint64_t stream, std::uint64_t first, int n,
                                         T* factor, int stride = 1) {
  constexpr int most = on_host ? 128 : 4;
  T const scale = static_cast<T>(dropout.scale);
  std::uint32_t const threshold = dropout.threshold;
  for (int begin = 0; begin < n; begin += most) {
    std::uint32_t word[most];
    int const m = n - begin < most ? n - begin : most;
    random_words(dropout.key, stream, first + static_cast<std::uint64_t>(begin), m, word);
    P3D_SIMD
    for (int i = 0; i < m; ++i) factor[(begin + i) * stride] = word[i] >= threshold ? scale : T(0);
  }
}

}  // namespace p3d::kernels
