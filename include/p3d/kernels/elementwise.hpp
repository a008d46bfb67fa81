// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bias, activations, residual with dropout, fills, conversions and reductions. All kernels are rank-local. S, Acc and G
// are explained in common.hpp.

#include <p3d/kernels/common.hpp>

#include <limits>
#include <vector>

namespace p3d::kernels {

/// y[r, c] = bias[c], for a GEMM that adds to it. A BLAS clears a result that it does not add to, so the bias costs no
/// pass of its own.
template <class S>
void fill_with_bias(ExecSpace const& exec, View2<S> y, View1<S const> bias);
/// dbias[c] += sum over rows of dy[r, c], summed in double. An empty dbias gets nothing.
template <class S, class G = Acc<S>>
void bias_backward(ExecSpace const& exec, View2<S const> dy, Given<View1<G>> dbias);

// The activation functions read x + bias, where the bias [columns of x] may be empty. Their backward gives the gradient
// with respect to x + bias.

/// GELU, tanh form (Hendrycks, Gimpel, arXiv 1606.08415; GPT-2): y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class S>
void gelu_forward(ExecSpace const& exec, View2<S const> x, View2<S> y, Given<View1<S const>> bias = {});
/// dx = dy gelu'(x + bias), element by element; dx may be dy.
template <class S>
void gelu_backward(ExecSpace const& exec, View2<S const> x, View2<S const> dy, View2<S> dx,
                   Given<View1<S const>> bias = {});

/// SwiGLU (Shazeer, arXiv 2002.05202) of gate_up [rows, 2F] = (gate | up): y [rows, F] = silu(gate) up.
template <class S>
void swiglu_forward(ExecSpace const& exec, View2<S const> gate_up, View2<S> y, Given<View1<S const>> bias = {});
/// dgate_up [rows, 2F] = the gradient of gate_up (with its bias), for dy [rows, F].
template <class S>
void swiglu_backward(ExecSpace const& exec, View2<S const> gate_up, View2<S const> dy, View2<S> dgate_up,
                     Given<View1<S const>> bias = {});

/// The numbers of clamped SwiGLU.
struct SwigluBounds {
  double alpha = 1.702, limit = 7.0;
};
/// Clamped SwiGLU (gpt-oss), with gate g of at most `limit` and up u within [-limit, limit]: y = (u + 1) g
/// sigmoid(alpha g). Where a number is clamped, its gradient is 0.
template <class S>
void swiglu_clamped_forward(ExecSpace const& exec, SwigluBounds bounds, View2<S const> gate_up, View2<S> y,
                            Given<View1<S const>> bias = {});
template <class S>
void swiglu_clamped_backward(ExecSpace const& exec, SwigluBounds bounds, View2<S const> gate_up, View2<S const> dy,
                             View2<S> dgate_up, Given<View1<S const>> bias = {});

/// GeGLU (Shazeer, arXiv 2002.05202; Gemma) of gate_up: y = gelu(gate) up, with the tanh form of GELU; as SwiGLU.
template <class S>
void geglu_forward(ExecSpace const& exec, View2<S const> gate_up, View2<S> y, Given<View1<S const>> bias = {});
template <class S>
void geglu_backward(ExecSpace const& exec, View2<S const> gate_up, View2<S const> dy, View2<S> dgate_up,
                    Given<View1<S const>> bias = {});

/// y = x + dropout(branch + bias); bias may be empty; y may be x or branch. All are [rows, hidden] with all columns of
/// the hidden dimension; the rows may be some or all rows of the samples.
template <class S>
void residual_forward(ExecSpace const& exec, TokenRows rows, View2<S const> x, View2<S const> branch,
                      View1<S const> bias, Dropout const& dropout, View2<S> y);
/// dbranch = dropout mask * Dropout::scale * dy (the gradient of x is dy itself); dbranch may be dy. The rows are as in
/// residual_forward.
template <class S>
void residual_backward(ExecSpace const& exec, TokenRows rows, View2<S const> dy, Dropout const& dropout,
                       View2<S> dbranch);
/// x = dropout(x), in place. The backward pass of this function is the function itself. The rows are as in
/// residual_forward.
template <class S>
void dropout_in_place(ExecSpace const& exec, TokenRows rows, Dropout const& dropout, View2<S> x);
/// y = factor x; y may be x, and then a factor of 1 launches nothing.
template <class S>
void multiply(ExecSpace const& exec, double factor, View2<S const> x, View2<S> y);

/// a = b = a + b, for two shards of one gradient (tied embeddings) of the same shape. Reads 2 and writes 2 numbers per
/// element.
template <class S>
void sum_into_both(ExecSpace const& exec, View2<S> a, View2<S> b);

/// y += x, for vectors of the same length. Reads 2 and writes 1 number per element.
template <class S>
void add(ExecSpace const& exec, View1<S const> x, View1<S> y);

/// Every element becomes `value`.
template <class S>
void fill(ExecSpace const& exec, View1<S> x, S value);
/// Fills the local block of a global matrix [*, global_cols] that is drawn from normal(0, std). Element (i, j) is std *
/// random_normal(key, 0, (row_begin + i) * global_cols + col_begin + j); rows from valid_rows on are zero. T is float
/// or double: weights that are stored in 16 bits are drawn as master weights and converted, so that every precision
/// starts from one model.
template <class S>
void fill_normal(ExecSpace const& exec, base::RandomKey key, double std, std::int64_t row_begin, std::int64_t col_begin,
                 std::int64_t global_cols, std::int64_t valid_rows, View2<S> x);

/// to[i] = from[i], rounded to nearest, ties to even. A number that is too large for `To` becomes infinite; NaN stays
/// NaN. Instantiated between float and each of double, bfloat16 and float16.
template <class From, class To>
void convert(ExecSpace const& exec, View1<From const> from, View1<To> to);

/// Elements [begin, begin + count) of a vector.
struct Segment {
  std::int64_t begin = 0, count = 0;
};
/// sum(0) += the sum of squares of every segment of x, accumulated in double, one segment after the other. The bits are
/// those of one call for each segment, with two launches for up to 64 segments. The host does not wait for the sum.
template <class S>
void add_sum_squares(ExecSpace const& exec, View1<S const> x, std::vector<Segment> const& segments, View1<double> sum);
/// Allocates the memory in which kernels of this process add up (base::column_workspace_size); else the first of them
/// does. It is kept until Kokkos ends.
void take_workspaces();
/// Returns the numbers that kernels have added to `sums` and clears `sums`. Waits for all work that `exec` was given
/// before.
std::vector<double> take_sums(ExecSpace const& exec, View1<double> sums);
/// The number of elements that are NaN, or as large as `limit` or larger in size: where it is infinity, of those that
/// are not finite. Waits for it.
template <class S>
std::int64_t count_not_finite(ExecSpace const& exec, View1<S const> x,
                              double limit = std::numeric_limits<double>::infinity());

}  // namespace p3d::kernels
