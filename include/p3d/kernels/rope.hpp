// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary position embedding (Su et al., arXiv 2104.09864): pairs of dimensions of a head turn by the angle position *
// frequency[i] (layout/rope.hpp).

#include <p3d/kernels/common.hpp>

#include <limits>

namespace p3d::kernels {

/// Direction of the rotation: forward, or its transpose for the backward pass.
enum class Rotation { forward, backward };

/// The dimensions that pair i consists of, where r dimensions of a head rotate: i and i + r / 2 (Llama in Hugging Face
/// form), or the neighbours 2 i and 2 i + 1 (the paper, GLM-4).
enum class RopePairs { halves, neighbours };

/// The heads that rotate.
struct RopeShape {
  std::int64_t heads = 0, head_dim = 0;
  RopePairs pairs = RopePairs::halves;
  double factor = 1.0;  ///< rotated dimensions are multiplied by it
  /// The first query_heads heads are multiplied by 1 + query_beta ln(1 + floor(position / query_length)) besides.
  double query_beta = 0.0;
  std::int64_t query_heads = 0, query_length = 1;
  /// Positions from this one on turn by the second half of `frequencies`, where these are two sets.
  std::int64_t second_set_from = std::numeric_limits<std::int64_t>::max();
};

/// Rotates the first heads * head_dim columns of x [rows, *] in place. Queries and keys lie before the values, so one
/// call with heads = query heads + kv heads serves both. frequencies is [sets, r / 2], in radians per position, for one
/// or two sets (RopeShape::second_set_from): the first r dimensions of a head rotate, r <= head_dim. Angles are
/// computed in double; their sine and cosine are rounded to Acc<S>.
template <class S>
void rope(ExecSpace const& exec, TokenRows const& rows, RopeShape const& shape, View2<double const> frequencies,
          Rotation rotation, View2<S> x);

}  // namespace p3d::kernels
