// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bias, activations, residual with dropout, fills and reductions. Rank-local.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// y[r, c] = bias[c], for a matrix product to add to: a BLAS clears what it does not add to, so the bias costs no pass.
template <class T>
void fill_with_bias(ExecSpace const& exec, View2<T> y, View1<T const> bias);
/// dbias[c] += sum over rows of dy[r, c]. Empty dbias: nothing.
template <class T>
void bias_backward(ExecSpace const& exec, View2<T const> dy, View1<T> dbias);

/// GELU, tanh form (Hendrycks, Gimpel, arXiv 1606.08415; GPT-2): y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class T>
void gelu_forward(ExecSpace const& exec, View2<T const> x, View2<T> y);
/// dx = dy gelu'(x); dx may be dy.
template <class T>
void gelu_backward(ExecSpace const& exec, View2<T const> x, View2<T const> dy, View2<T> dx);

/// SwiGLU (Shazeer, arXiv 2002.05202): gate_up [rows, 2F] = (gate | up), y [rows, F] = silu(gate) up.
template <class T>
void swiglu_forward(ExecSpace const& exec, View2<T const> gate_up, View2<T> y);
template <class T>
void swiglu_backward(ExecSpace const& exec, View2<T const> gate_up, View2<T const> dy, View2<T> dgate_up);

/// y = x + dropout(branch + bias); bias may be empty; y may be x or branch. [rows, hidden], all columns present.
template <class T>
void residual_forward(ExecSpace const& exec, TokenRows rows, View2<T const> x, View2<T const> branch,
                      View1<T const> bias, Dropout const& dropout, View2<T> y);
/// dbranch = dropout mask * scale * dy (the gradient of x is dy itself); dbranch may be dy when dropout is inactive.
template <class T>
void residual_backward(ExecSpace const& exec, TokenRows rows, View2<T const> dy, Dropout const& dropout,
                       View2<T> dbranch);
/// x = dropout(x), in place; its own backward.
template <class T>
void dropout_in_place(ExecSpace const& exec, TokenRows rows, Dropout const& dropout, View2<T> x);

/// a = b = a + b: two shards of one gradient (tied embeddings). Same shapes. Reads 2 and writes 2 numbers per element.
template <class T>
void sum_into_both(ExecSpace const& exec, View2<T> a, View2<T> b);

/// Fills.
template <class T>
void fill(ExecSpace const& exec, View1<T> x, T value);
/// Local block of a global matrix [*, global_cols] drawn from normal(0, std): element (i, j) is
/// std * random_normal(key, 0, (row_begin + i) * global_cols + col_begin + j); rows from valid_rows on are zero.
template <class T>
void fill_normal(ExecSpace const& exec, base::RandomKey key, double std, std::int64_t row_begin, std::int64_t col_begin,
                 std::int64_t global_cols, std::int64_t valid_rows, View2<T> x);

/// Sum of squares, accumulated in double.
template <class T>
double sum_squares(ExecSpace const& exec, View1<T const> x);
/// How many elements are NaN or infinite.
template <class T>
std::int64_t count_not_finite(ExecSpace const& exec, View1<T const> x);

}  // namespace p3d::kernels
