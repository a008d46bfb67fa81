// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary position embedding (Su et al., arXiv 2104.09864), in the half-split convention of Llama in Hugging Face form:
// dimension i pairs with i + head_dim / 2, angle = position * frequency[i] (layout/rope.hpp).

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// Direction of the rotation: forward, or its transpose for the backward pass.
enum class Rotation { forward, backward };

/// Rotates the first `heads` * head_dim columns of x [rows, *] in place. Queries and keys lie before the values, so one
/// call with heads = query heads + kv heads serves both. frequencies is [head_dim / 2], in radians per position. Angles
/// are computed in double; their sine and cosine are rounded to Acc<S>.
template <class S>
void rope(ExecSpace const& exec, TokenRows const& rows, std::int64_t heads, std::int64_t head_dim,
          View1<double const> frequencies, Rotation rotation, View2<S> x);

}  // namespace p3d::kernels
