// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bias, activations, residual with dropout, fills, conversions and reductions. Rank-local. S, Acc, G: see common.hpp.

#include <p3d/kernels/common.hpp>

#include <vector>

namespace p3d::kernels {

/// y[r, c] = bias[c], for a matrix product to add to: a BLAS clears what it does not add to, so the bias costs no pass.
template <class S>
void fill_with_bias(ExecSpace const& exec, View2<S> y, View1<S const> bias);
/// dbias[c] += sum over rows of dy[r, c], summed in double. Empty dbias: nothing.
template <class S, class G = Acc<S>>
void bias_backward(ExecSpace const& exec, View2<S const> dy, Given<View1<G>> dbias);

// Activation functions of x + bias; the bias [columns of x] may be empty. Backward gives the gradient of x + bias.

/// GELU, tanh form (Hendrycks, Gimpel, arXiv 1606.08415; GPT-2): y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class S>
void gelu_forward(ExecSpace const& exec, View2<S const> x, View2<S> y, Given<View1<S const>> bias = {});
/// dx = dy gelu'(x + bias); dx may be dy.
template <class S>
void gelu_backward(ExecSpace const& exec, View2<S const> x, View2<S const> dy, View2<S> dx,
                   Given<View1<S const>> bias = {});

/// SwiGLU (Shazeer, arXiv 2002.05202): gate_up [rows, 2F] = (gate | up), y [rows, F] = silu(gate) up.
template <class S>
void swiglu_forward(ExecSpace const& exec, View2<S const> gate_up, View2<S> y, Given<View1<S const>> bias = {});
template <class S>
void swiglu_backward(ExecSpace const& exec, View2<S const> gate_up, View2<S const> dy, View2<S> dgate_up,
                     Given<View1<S const>> bias = {});

/// y = x + dropout(branch + bias); bias may be empty; y may be x or branch. [rows, hidden], all columns present; some
/// or all rows of the samples, here and in the next two.
template <class S>
void residual_forward(ExecSpace const& exec, TokenRows rows, View2<S const> x, View2<S const> branch,
                      View1<S const> bias, Dropout const& dropout, View2<S> y);
/// dbranch = dropout mask * scale * dy (the gradient of x is dy itself); dbranch may be dy when dropout is inactive.
template <class S>
void residual_backward(ExecSpace const& exec, TokenRows rows, View2<S const> dy, Dropout const& dropout,
                       View2<S> dbranch);
/// x = dropout(x), in place; its own backward.
template <class S>
void dropout_in_place(ExecSpace const& exec, TokenRows rows, Dropout const& dropout, View2<S> x);

/// a = b = a + b: two shards of one gradient (tied embeddings). Same shapes. Reads 2 and writes 2 numbers per element.
template <class S>
void sum_into_both(ExecSpace const& exec, View2<S> a, View2<S> b);

/// y += x. Same lengths. Reads 2 and writes 1 number per element.
template <class S>
void add(ExecSpace const& exec, View1<S const> x, View1<S> y);

/// Every element becomes `value`.
template <class S>
void fill(ExecSpace const& exec, View1<S> x, S value);
/// Local block of a global matrix [*, global_cols] drawn from normal(0, std): element (i, j) is
/// std * random_normal(key, 0, (row_begin + i) * global_cols + col_begin + j); rows from valid_rows on are zero. For
/// float and double: what is stored in 16 bits is drawn as a master weight and converted, so that every precision
/// starts from one model.
template <class S>
void fill_normal(ExecSpace const& exec, base::RandomKey key, double std, std::int64_t row_begin, std::int64_t col_begin,
                 std::int64_t global_cols, std::int64_t valid_rows, View2<S> x);

/// to[i] = from[i], rounded to nearest, ties to even; what is too large for `To` becomes infinite, NaN stays NaN.
/// Between float and each of double, bfloat16, float16.
template <class From, class To>
void convert(ExecSpace const& exec, View1<From const> from, View1<To> to);

/// Elements [begin, begin + count) of a vector.
struct Segment {
  std::int64_t begin = 0, count = 0;
};
/// sum(0) += the sum of squares of every segment of x, accumulated in double, one segment after the other: the same
/// bits as a call for each, with two launches for up to 64 segments. Nothing waits for it.
template <class S>
void add_sum_squares(ExecSpace const& exec, View1<S const> x, std::vector<Segment> const& segments, View1<double> sum);
/// What kernels have added to `sums`, which are zero afterwards. Waits for all that `exec` was given before.
std::vector<double> take_sums(ExecSpace const& exec, View1<double> sums);
/// How many elements are NaN or infinite.
template <class S>
std::int64_t count_not_finite(ExecSpace const& exec, View1<S const> x);

}  // namespace p3d::kernels
