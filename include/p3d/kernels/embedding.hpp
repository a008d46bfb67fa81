// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token and position embedding, the rank-local part of a vocabulary shard. Tokens are [rows] (their values are checked
// when data is read), weight [local vocabulary, hidden], positions [seq_len, hidden] and out [rows, hidden]. S, Acc and
// G are explained in common.hpp.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// out[r] = weight[tokens[r] - vocab_begin], or 0 when the token is outside this shard.
template <class S>
void embedding_forward(ExecSpace const& exec, View1<int const> tokens, View2<S const> weight, std::int64_t vocab_begin,
                       View2<S> out);
/// dweight[tokens[r] - vocab_begin] += dout[r] for the tokens of this shard. Rows are added in row order on every
/// backend (deterministic).
template <class S, class G = Acc<S>>
void embedding_backward(ExecSpace const& exec, View1<int const> tokens, View2<S const> dout, std::int64_t vocab_begin,
                        Given<View2<G>> dweight);

/// out[r] += positions[p], where p is the position of row first_row + r (TokenRows). The rows are some or all rows of
/// the samples.
template <class S>
void position_forward(ExecSpace const& exec, TokenRows const& rows, View2<S const> positions, View2<S> out);
/// dpositions[p] += dout[r], rows in order, where p is the position of row first_row + r. The rows are some or all rows
/// of the samples.
template <class S, class G = Acc<S>>
void position_backward(ExecSpace const& exec, TokenRows const& rows, View2<S const> dout, Given<View2<G>> dpositions);

}  // namespace p3d::kernels
