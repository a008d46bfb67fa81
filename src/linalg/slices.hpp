// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place where GEMMs run, and how a GEMM on the host is divided among Kokkos' threads: whole rows or whole columns
// of C, so that no sum is cut.

#include <p3d/device/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace p3d::linalg::detail {

#if defined(P3D_PORTABLE_FORM)  // the form of devices, built for the host by tests
inline constexpr bool on_host = false;
#else
inline constexpr bool on_host = std::is_same_v<device::MemSpace, device::HostSpace>;
#endif

/// A division of a GEMM: slices of rows or of columns of C, one for each thread.
struct Slices {
  int threads;
  bool by_rows;
  std::int64_t width;  ///< rows or columns of a slice; the last may have fewer, or none
};

/// The division for up to `concurrency` threads. Small GEMMs get fewer threads.
inline Slices slices(int concurrency, std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr double worth_a_thread = 1e6;  // FLOPs: some ten microseconds
  double const flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  int const threads = static_cast<int>(std::clamp(flops / worth_a_thread, 1.0, static_cast<double>(concurrency)));
  bool const by_rows = m > n;
  std::int64_t const size = by_rows ? m : n, step = size >= 64 * threads ? 16 : 1;
  return {threads, by_rows, (size + step * threads - 1) / (step * threads) * step};
}

/// The number of rows or columns of C (the more numerous of the two) that so many threads compute in some ten
/// milliseconds, or in one where polls are `often`; all of them where C has no more. Pieces have at least
/// 1,024: a BLAS packs the other operand again for each piece, which for fewer rows or columns would cost more than a
/// few percent. Where polls are frequent, pieces have at least 96: a message to another node moves by 256 KiB from one
/// poll to the next, and what it loses by rare polls is more than the 2 to 5 % that small pieces cost. They are a
/// multiple of gemm_row_block.
inline std::int64_t polled_width(std::int64_t m, std::int64_t n, std::int64_t k, int concurrency, bool often) {
  double const between_polls = often ? 1e8 : 1e9;  // FLOPs of a thread
  auto const size = std::max(m, n);
  double const flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  std::int64_t const least_width = often ? 96 : 1024, multiple = often ? 48 : 192;
  double const pieces =
      std::min(std::ceil(flops / (between_polls * concurrency)), static_cast<double>(size / least_width));
  if (pieces <= 1.0) return size;
  auto const width = static_cast<std::int64_t>(static_cast<double>(size) / pieces);
  return (width + multiple - 1) / multiple * multiple;
}

}  // namespace p3d::linalg::detail
