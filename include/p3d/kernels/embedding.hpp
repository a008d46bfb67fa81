// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token and position embedding, rank-local part of a vocabulary shard. tokens: [rows] (values are checked when data is
// read); weight: [local vocabulary, hidden]; positions: [seq_len, hidden]; out: [rows, hidden].

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// out[r] = weight[tokens[r] - vocab_begin], or 0 when the token is outside this shard.
template <class T>
void embedding_forward(ExecSpace const& exec, View1<int const> tokens, View2<T const> weight, std::int64_t vocab_begin,
                       View2<T> out);
/// dweight[tokens[r] - vocab_begin] += dout[r]; summed over rows in row order on every backend (deterministic).
template <class T>
void embedding_backward(ExecSpace const& exec, View1<int const> tokens, View2<T const> dout, std::int64_t vocab_begin,
                        View2<T> dweight);

/// out[r] += positions[r % seq_len + token_offset].
template <class T>
void position_forward(ExecSpace const& exec, TokenRows rows, View2<T const> positions, std::int64_t token_offset,
                      View2<T> out);
template <class T>
void position_backward(ExecSpace const& exec, TokenRows rows, View2<T const> dout, std::int64_t token_offset,
                       View2<T> dpositions);

}  // namespace p3d::kernels
