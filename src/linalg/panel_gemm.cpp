// SPDX-License-Identifier: Apache-2.0
// A GEMM for few rows with AVX-512: C is computed in tiles of 8 rows and 48 columns, whose sums stay in registers. A
// panel of up to 384 rows and 48 columns of B is copied into the order in which tiles read it, and then serves all rows
// of A. Sums of one element are added in one order, whatever the number of rows or threads.
#if defined(__AVX512F__)
// The header of GCC 12 starts from variables that it leaves undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include "panel_gemm.hpp"

#include <algorithm>

#if defined(__AVX512F__) && !defined(P3D_PORTABLE_FORM) && !defined(KOKKOS_ENABLE_CUDA) && \
    !defined(KOKKOS_ENABLE_HIP) && !defined(KOKKOS_ENABLE_SYCL)
#define P3D_PANEL_GEMM
#endif

namespace p3d::linalg::detail {

#if defined(P3D_PANEL_GEMM)

namespace {

// A tile takes 8 x 3 vectors of sums, 3 of B and one of A: 28 of 32 registers. A panel of B fits in the second-level
// cache.
constexpr int tile_rows = 8, vectors = 3, lanes = 16, strip_cols = vectors * lanes;
constexpr std::int64_t panel_rows = 384;

/// Transposes 16 x 16 numbers. Loads into the four parts of a vector save half of the shuffles, which would compete
/// with the multiplications for one port.
void transpose(float const* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  for (int q = 0; q < lanes; q += 4) {
    __m512 r[4];
    for (int i = 0; i < 4; ++i) {
      float const* const x = from + i * from_stride + q;
      r[i] = _mm512_castps128_ps512(_mm_loadu_ps(x));
      r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x00f0, _mm_loadu_ps(x + 4 * from_stride));
      r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x0f00, _mm_loadu_ps(x + 8 * from_stride));
      r[i] = _mm512_mask_broadcast_f32x4(r[i], 0xf000, _mm_loadu_ps(x + 12 * from_stride));
    }
    __m512d const low = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
    __m512d const high = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
    __m512d const next_low = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
    __m512d const next_high = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
    float* const y = to + q * to_stride;
    _mm512_storeu_ps(y, _mm512_castpd_ps(_mm512_unpacklo_pd(low, next_low)));
    _mm512_storeu_ps(y + to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(low, next_low)));
    _mm512_storeu_ps(y + 2 * to_stride, _mm512_castpd_ps(_mm512_unpacklo_pd(high, next_high)));
    _mm512_storeu_ps(y + 3 * to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(high, next_high)));
  }
}

/// A part of op(B), from its first element on.
struct Part {
  float const* data;
  std::int64_t stride;
  bool transposed;
  Part at(std::int64_t p, std::int64_t j) const {
    return {transposed ? data + j * stride + p : data + p * stride + j, stride, transposed};
  }
  float operator()(std::int64_t p, std::int64_t j) const { return *at(p, j).data; }
};

/// panel [k, 48] = the part's first k rows and `cols` columns; columns beyond them are zero.
void fill_panel(Part const& b, std::int64_t k, int cols, float* panel) {
  std::int64_t const whole = cols < strip_cols ? 0 : (b.transposed ? k / lanes * lanes : k);
  if (b.transposed) {
    for (int j = 0; j < strip_cols; j += lanes)
      for (std::int64_t p = 0; p < whole; p += lanes)
        transpose(b.at(p, j).data, b.stride, panel + p * strip_cols + j, strip_cols);
  } else {
    for (std::int64_t p = 0; p < whole; ++p)
      for (int j = 0; j < strip_cols; j += lanes)
        _mm512_storeu_ps(panel + p * strip_cols + j, _mm512_loadu_ps(b.at(p, j).data));
  }
  for (std::int64_t p = whole; p < k; ++p)
    for (int j = 0; j < strip_cols; ++j) panel[p * strip_cols + j] = j < cols ? b(p, j) : 0.0F;
}

/// The place in C that a tile's sums go to: C = alpha sums + beta C.
struct Tile {
  float alpha, beta;
  float* c;
  std::int64_t stride;
  int cols;
  void store(int row, int vector, __m512 sum) const {
    int const left = cols - vector * lanes;
    if (left <= 0) return;
    auto const mask = static_cast<__mmask16>(left < lanes ? (1U << left) - 1 : 0xffffU);
    float* const y = c + row * stride + vector * lanes;
    __m512 const x = _mm512_mul_ps(_mm512_set1_ps(alpha), sum);
    // With beta = 0, C is not read, so that NaN in it does not matter.
    __m512 const all = beta == 0 ? x : _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, y), x);
    _mm512_mask_storeu_ps(y, mask, all);
  }
};

/// A tile of `Rows` rows: k steps through the panel.
template <int Rows>
void multiply(std::int64_t k, float const* a, std::int64_t lda, float const* panel, Tile const& tile) {
  __m512 sum[Rows][vectors];
  for (auto& row : sum)
    for (auto& x : row) x = _mm512_setzero_ps();
#pragma GCC unroll 2
  for (std::int64_t p = 0; p < k; ++p, panel += strip_cols) {
    __m512 b[vectors];
    for (int v = 0; v < vectors; ++v) b[v] = _mm512_loadu_ps(panel + v * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      __m512 const x = _mm512_set1_ps(a[i * lda + p]);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[i][v] = _mm512_fmadd_ps(x, b[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) tile.store(i, v, sum[i][v]);
}

using Multiply = void (*)(std::int64_t, float const*, std::int64_t, float const*, Tile const&);
constexpr Multiply multiply_rows[] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>,
                                      multiply<5>, multiply<6>, multiply<7>, multiply<8>};

/// One GEMM, as panel_gemm gets it.
struct Problem {
  std::int64_t m, n, k;
  float alpha;
  float const* a;
  std::int64_t lda;
  Part b;
  float beta;
  float* c;
  std::int64_t ldc;

  /// Computes columns [begin, end) of C.
  void run(std::int64_t begin, std::int64_t end) const {
    alignas(64) float panel[panel_rows * strip_cols];
    for (std::int64_t p = 0; p < k; p += panel_rows) {
      std::int64_t const depth = std::min(panel_rows, k - p);
      for (std::int64_t j = begin; j < end; j += strip_cols) {
        int const cols = static_cast<int>(std::min<std::int64_t>(strip_cols, end - j));
        fill_panel(b.at(p, j), depth, cols, panel);
        for (std::int64_t i = 0; i < m; i += tile_rows)
          multiply_rows[std::min<std::int64_t>(tile_rows, m - i) - 1](
              depth, a + i * lda + p, lda, panel, {alpha, p == 0 ? beta : 1.0F, c + i * ldc + j, ldc, cols});
      }
    }
  }
};

}  // namespace

bool panel_gemm(device::ExecSpace const& exec, Op op_b, float alpha, device::View2<float const> a,
                device::View2<float const> b, float beta, device::View2<float> c) {
  auto const size = [](auto x) { return static_cast<std::int64_t>(x); };
  Problem const problem{size(c.extent(0)),
                        size(c.extent(1)),
                        size(a.extent(1)),
                        alpha,
                        a.data(),
                        size(a.stride(0)),
                        {b.data(), size(b.stride(0)), op_b == Op::transpose},
                        beta,
                        c.data(),
                        size(c.stride(0))};
  // Each thread has whole panels, so no sum is cut.
  std::int64_t const panels = (problem.n + strip_cols - 1) / strip_cols;
  std::int64_t const threads = std::min<std::int64_t>(exec.concurrency(), panels);
  if (threads <= 1) {
    problem.run(0, problem.n);
    return true;
  }
  std::int64_t const width = (panels + threads - 1) / threads * strip_cols;
  Kokkos::parallel_for(
      "p3d::linalg::panel_gemm", Kokkos::RangePolicy<device::ExecSpace, int>(exec, 0, static_cast<int>(threads)),
      KOKKOS_LAMBDA(int i) { problem.run(std::min(i * width, problem.n), std::min((i + 1) * width, problem.n)); });
  return true;
}

#else

bool panel_gemm(device::ExecSpace const&, Op, float, device::View2<float const>, device::View2<float const>, float,
                device::View2<float>) {
  return false;
}

#endif

}  // namespace p3d::linalg::detail
