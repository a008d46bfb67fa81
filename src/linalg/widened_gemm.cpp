// SPDX-License-Identifier: Apache-2.0
// GEMMs on the host by panels in float, which the BLAS multiplies; products and sums are those of float. Panels of
// 16-bit operands are widened, which is exact, for processors without 16-bit units; a C of 16 bits is rounded once.
// Panels of fp32 operands are rounded to 16 bits, for which the BLAS has no type.

#include <p3d/base/float16.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/linalg/host_blas.hpp>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "gemm16.hpp"
#include "rounded_gemm.hpp"
#include "widen.hpp"

namespace p3d::linalg::detail {

namespace {

static_assert(panel_rows % gemm_row_block == 0, "a GEMM that is cut by rows has the panels' rows in the same tiles");

/// Rounds a contiguous block to 16 bits, into rows `ld` elements apart.
void round_block(Type16 type, float const* from, std::int64_t rows, std::int64_t cols, std::uint16_t* to,
                 std::int64_t ld) {
  for (std::int64_t i = 0; i < rows; ++i) {
    auto const* const x = from + i * cols;
    auto* const y = to + i * ld;
    if (type == Type16::bfloat16) {
      for (std::int64_t j = 0; j < cols; ++j) y[j] = base::bfloat16_bits(x[j]);
    } else {
      for (std::int64_t j = 0; j < cols; ++j) y[j] = base::float16_bits(x[j]);
    }
  }
}

void round_row_bf16(float const* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = base::bfloat16_value(base::bfloat16_bits(from[i]));
}
void round_row_fp16(float const* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = base::float16_value(base::float16_bits(from[i]));
}

/// A panel of one operand in float, with the place of the block that it holds. T: the operand's type.
template <class T>
struct Panel {
  void (*load_row)(T const* from, std::int64_t count, float* to);
  float* data;
  std::int64_t row = -1, col = -1;  ///< the place in op(operand) where the block begins
  std::int64_t ld = 0;

  /// Loads rows [i, i + rows) and columns [j, j + cols) of op(X), in the order in which X is stored, unless the panel
  /// holds them already.
  void load(Op op, T const* x, std::int64_t ldx, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t cols) {
    if (row == i && col == j) return;
    row = i;
    col = j;
    ld = op == Op::none ? cols : rows;
    auto const* const from = op == Op::none ? x + i * ldx + j : x + j * ldx + i;
    for (std::int64_t r = 0; r < (op == Op::none ? rows : cols); ++r) load_row(from + r * ldx, ld, data + r * ld);
  }
};

/// One GEMM, block by block, in one thread's workspace. G: Gemm16 or RoundedGemm, with operands of type T.
template <class G, class T>
class Product {
public:
  Product(G const& g, void (*load_row)(T const*, std::int64_t, float*), float* workspace)
      : g_(g),
        load_row_(load_row),
        a_{load_row, workspace},
        b_{load_row, workspace + panel_rows * panel_depth},
        c_(workspace + panel_rows * panel_depth + panel_depth * panel_cols) {}

  void run() {
    for (std::int64_t j = 0; j < g_.n; j += panel_cols) {
      if (!has_narrow_c || wide_c()) {
        for (std::int64_t l = 0; l < g_.k; l += panel_depth)
          for (std::int64_t i = 0; i < g_.m; i += panel_rows) add_to_c(i, j, l);
      } else if constexpr (has_narrow_c) {
        for (std::int64_t i = 0; i < g_.m; i += panel_rows) narrow_block(i, j);
      }
    }
  }

private:
  static constexpr bool has_narrow_c = std::is_same_v<G, Gemm16>;
  bool wide_c() const {
    if constexpr (has_narrow_c) return g_.wide_c;
    return true;
  }

  /// c = alpha (block of A) (block of B) + beta c, for rows from i, columns from j and terms of the sums from l on.
  void multiply(std::int64_t i, std::int64_t j, std::int64_t l, float beta, float* c, std::int64_t ldc) {
    std::int64_t const m = std::min(panel_rows, g_.m - i), n = std::min(panel_cols, g_.n - j),
                       k = std::min(panel_depth, g_.k - l);
    a_.load(g_.op_a, g_.a, g_.lda, i, l, m, k);
    b_.load(g_.op_b, g_.b, g_.ldb, l, j, k, n);
    plain_host_gemm<float>(gemm_choice().others(), g_.op_a, g_.op_b, m, n, k, g_.alpha, a_.data, a_.ld, b_.data, b_.ld,
                           beta, c, ldc);
  }

  void add_to_c(std::int64_t i, std::int64_t j, std::int64_t l) {
    multiply(i, j, l, l == 0 ? g_.beta : 1.0F, static_cast<float*>(g_.c) + i * g_.ldc + j, g_.ldc);
  }

  /// A block of a 16-bit C is summed in float over all of k and then rounded.
  void narrow_block(std::int64_t i, std::int64_t j) {
    std::int64_t const m = std::min(panel_rows, g_.m - i), n = std::min(panel_cols, g_.n - j);
    auto* const c = static_cast<std::uint16_t*>(g_.c) + i * g_.ldc + j;
    if (g_.beta != 0.0F) {
      for (std::int64_t r = 0; r < m; ++r) load_row_(c + r * g_.ldc, n, c_ + r * n);
      if (g_.beta != 1.0F) std::for_each_n(c_, m * n, [this](float& x) { x *= g_.beta; });
    }
    for (std::int64_t l = 0; l < g_.k; l += panel_depth)
      multiply(i, j, l, l == 0 && g_.beta == 0.0F ? 0.0F : 1.0F, c_, n);
    round_block(g_.type, c_, m, n, c, g_.ldc);
  }

  G const& g_;
  void (*load_row_)(T const*, std::int64_t, float*);
  Panel<T> a_, b_;
  float* c_;
};

}  // namespace

void widened_gemm(Gemm16 const& product, float* workspace) {
  Product<Gemm16, std::uint16_t>(product, widen_row(product.type), workspace).run();
}

void rounded_gemm(Operands to, RoundedGemm const& product) {
  // Small GEMMs, such as attention's, come from several threads: each has memory of its own.
  thread_local std::unique_ptr<float[]> const workspace(new float[static_cast<std::size_t>(panel_floats)]);
  auto* const round = to == Operands::bf16 ? round_row_bf16 : round_row_fp16;
  Product<RoundedGemm, float>(product, round, workspace.get()).run();
}

}  // namespace p3d::linalg::detail
