// SPDX-License-Identifier: Apache-2.0
// Column-parallel and row-parallel linear layers: a GEMM, and the message before or after it, which hide each other in
// chunks of rows.
#include <p3d/parallel/linear.hpp>

#include <p3d/base/poll.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/linalg/gemm.hpp>

#include <algorithm>
#include <type_traits>
#include <vector>

namespace p3d::parallel {

using linalg::Op;

namespace {

/// C = op(A) op(B) + beta C.
template <class S, class C>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, View2<S const> a, View2<S const> b, double beta, View2<C> c) {
  using Sum = device::accumulate_t<S>;
  if constexpr (std::is_same_v<S, Sum>) {
    linalg::gemm<S>(exec, op_a, op_b, S(1), a, b, static_cast<S>(beta), c);
  } else {
    linalg::gemm<S, C>(exec, op_a, op_b, Sum(1), a, b, static_cast<Sum>(beta), c);
    base::poll();  // GEMMs of float and double poll by themselves: messages of the last action begin when its kernels
                   // have ended
  }
}

/// Some rows of a matrix, which may be columns of a wider one.
template <class T>
View2<T> rows(View2<T> m, layout::Range range) {
  return Kokkos::subview(m, Kokkos::pair<std::int64_t, std::int64_t>(range.begin, range.end), Kokkos::ALL);
}

/// The rows of a GEMM in blocks, each of which some call computes. The calls are runs of whole blocks, so that their
/// number changes no bit (linalg::gemm_row_block). Blocks do not end where ranks' rows or chunks end.
///
/// Example: 200 rows are 4 blocks of 48, 48, 48 and 56 rows. Rows 100 to 149 lie in the last two.
class RowBlocks {
public:
  explicit RowBlocks(std::int64_t rows) : rows_(rows) {
    auto const blocks = std::max<std::int64_t>(rows / linalg::gemm_row_block, 1);
    for (std::int64_t b = 0; b < blocks; ++b) {
      auto const begin = b * linalg::gemm_row_block;
      missing_.push_back((b + 1 == blocks ? rows : begin + linalg::gemm_row_block) - begin);
    }
    taken_.resize(missing_.size());
  }
  /// Runs of blocks that have some of these ascending ranges of rows, without those of earlier calls.
  std::vector<layout::Range> with_some_of(std::vector<layout::Range> const& ranges) {
    return take(ranges, [](std::size_t, std::int64_t) { return true; });
  }
  /// Runs of blocks all of whose rows are in these ascending ranges or in those of earlier calls.
  std::vector<layout::Range> filled_by(std::vector<layout::Range> const& ranges) {
    return take(ranges, [this](std::size_t b, std::int64_t rows) { return (missing_[b] -= rows) == 0; });
  }

private:
  layout::Range block(std::size_t b) const {
    auto const begin = static_cast<std::int64_t>(b) * linalg::gemm_row_block;
    return {begin, b + 1 == missing_.size() ? rows_ : begin + linalg::gemm_row_block};
  }
  /// Takes the blocks that the ranges meet and for which wanted(block, rows in the range) is true.
  template <class Wanted>
  std::vector<layout::Range> take(std::vector<layout::Range> const& ranges, Wanted&& wanted) {
    std::vector<layout::Range> runs;
    for (auto const& range : ranges) {
      auto const first = static_cast<std::size_t>(range.begin / linalg::gemm_row_block);
      for (auto b = std::min(first, missing_.size() - 1); b < missing_.size(); ++b) {
        auto const all = block(b);
        auto const rows = std::min(all.end, range.end) - std::max(all.begin, range.begin);
        if (rows <= 0) break;
        if (taken_[b] || !wanted(b, rows)) continue;
        taken_[b] = true;
        if (!runs.empty() && runs.back().end == all.begin)
          runs.back().end = all.end;
        else
          runs.push_back(all);
      }
    }
    return runs;
  }

  std::int64_t rows_;
  std::vector<std::int64_t> missing_;  ///< rows of each block that have not come
  std::vector<bool> taken_;
};

/// c = a op(b) + beta c for rows of a on their way, as they arrive. Where they come in chunks, this rank's own rows are
/// there first.
template <class S>
void gemm_of_arriving(TensorParallel& tp, Op op_b, WholeRows<S>& a, View2<S const> b, double beta, View2<S> c) {
  auto const n = static_cast<std::int64_t>(c.extent(0));
  RowBlocks blocks(n);
  auto const multiply = [&](std::vector<layout::Range> const& here) {
    for (auto const& run : blocks.filled_by(here))
      gemm<S, S>(tp.exec, Op::none, op_b, rows(a.view, run), b, beta, rows(c, run));
  };
  RowChunks const chunks(tp, n, a.arrival.count());
  if (chunks.count() < 2) {
    a.arrival.wait();
    return multiply({{0, n}});
  }
  multiply({own_range(tp, n)});
  for (int k = 0; k < chunks.count(); ++k) {
    auto arriving = chunks.rows(k);
    arriving.erase(arriving.begin() + tp.rank());
    a.arrival.wait(k);
    multiply(arriving);
  }
}

/// c = a op(b), and the sum of c over tp in chunks: one is under way while the next is computed.
template <class S>
RowMessages gemm_and_sum(TensorParallel& tp, Op op_b, View2<S const> a, View2<S const> b, View2<S> c,
                         RowChunks const& chunks) {
  RowBlocks blocks(static_cast<std::int64_t>(c.extent(0)));
  RowMessages sums(tp);
  for (int k = 0; k < chunks.count(); ++k) {
    for (auto const& run : blocks.with_some_of(chunks.rows(k)))
      gemm<S, S>(tp.exec, Op::none, op_b, rows(a, run), b, 0, rows(c, run));
    sums.add(start_sum_rows<S>(tp, c, chunks, k));
  }
  return sums;
}

/// The chunks of the rows of a matrix.
template <class S>
RowChunks chunks_of(TensorParallel const& tp, View2<S> c) {
  return RowChunks::usual(tp, static_cast<std::int64_t>(c.extent(0)),
                          static_cast<std::int64_t>(c.extent(1) * sizeof(S)));
}

}  // namespace

template <class S>
void column_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View1<S const> bias, View2<S> y) {
  bool const has_bias = bias.extent(0) != 0;
  if (has_bias) kernels::fill_with_bias<S>(tp.exec, y, bias);
  gemm<S, S>(tp.exec, Op::none, Op::transpose, x, w, has_bias ? 1 : 0, y);
}

template <class S>
void column_linear_forward(TensorParallel& tp, WholeRows<S>& x, View2<S const> w, View1<S const> bias, View2<S> y) {
  bool const has_bias = bias.extent(0) != 0;
  if (has_bias) kernels::fill_with_bias<S>(tp.exec, y, bias);
  gemm_of_arriving<S>(tp, Op::transpose, x, w, has_bias ? 1 : 0, y);
}

template <class S>
RowMessages column_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, View2<S> dx) {
  auto const chunks = tp.sequence ? chunks_of(tp, dx) : RowChunks(tp, static_cast<std::int64_t>(dx.extent(0)), 1);
  return gemm_and_sum<S>(tp, Op::none, dy, w, dx, chunks);
}

template <class S>
void row_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View2<S> y) {
  gemm_and_sum<S>(tp, Op::transpose, x, w, y, chunks_of(tp, y)).wait();
}

template <class S>
void row_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, View2<S> dx,
                               kernels::Store store) {
  local_linear_backward_input<S>(tp, dy, w, dx, store);
}

template <class S>
void row_linear_backward_input(TensorParallel& tp, WholeRows<S>& dy, View2<S const> w, View2<S> dx,
                               kernels::Store store) {
  gemm_of_arriving<S>(tp, Op::none, dy, w, store == kernels::Store::add ? 1 : 0, dx);
}

template <class S>
void local_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View2<S> y) {
  gemm<S, S>(tp.exec, Op::none, Op::transpose, x, w, 0, y);
}

template <class S>
void local_linear_forward(TensorParallel& tp, WholeRows<S>& x, View2<S const> w, View2<S> y) {
  gemm_of_arriving<S>(tp, Op::transpose, x, w, 0, y);
}

template <class S, class T>
void local_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, kernels::Given<View2<T>> dx,
                                 kernels::Store store) {
  gemm<S, T>(tp.exec, Op::none, Op::none, dy, w, store == kernels::Store::add ? 1 : 0, dx);
}

template <class S, class G>
void linear_backward_weight(ExecSpace const& exec, View2<S const> dy, View2<S const> x, kernels::Given<View2<G>> dw) {
  gemm<S, G>(exec, Op::transpose, Op::none, dy, x, 1, dw);
}

#define P3D_INSTANTIATE(S)                                                                                           \
  template void column_linear_forward<S>(TensorParallel&, View2<S const>, View2<S const>, View1<S const>, View2<S>); \
  template void column_linear_forward<S>(TensorParallel&, WholeRows<S>&, View2<S const>, View1<S const>, View2<S>);  \
  template RowMessages column_linear_backward_input<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>);   \
  template void row_linear_forward<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>);                    \
  template void row_linear_backward_input<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>,              \
                                             kernels::Store);                                                        \
  template void row_linear_backward_input<S>(TensorParallel&, WholeRows<S>&, View2<S const>, View2<S>,               \
                                             kernels::Store);                                                        \
  template void local_linear_forward<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>);                  \
  template void local_linear_forward<S>(TensorParallel&, WholeRows<S>&, View2<S const>, View2<S>);                   \
  template void local_linear_backward_input<S, S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>,         \
                                                  kernels::Store);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#if P3D_16BIT
template void local_linear_backward_input<device::bfloat16, float>(TensorParallel&, View2<device::bfloat16 const>,
                                                                   View2<device::bfloat16 const>, View2<float>,
                                                                   kernels::Store);
template void local_linear_backward_input<device::float16, float>(TensorParallel&, View2<device::float16 const>,
                                                                  View2<device::float16 const>, View2<float>,
                                                                  kernels::Store);
#endif
#define P3D_INSTANTIATE(P) P3D_INSTANTIATE_FOR(P::Storage, P::Gradient)
#define P3D_INSTANTIATE_FOR(S, G)                                                              \
  template void linear_backward_weight<S, G>(ExecSpace const&, View2<S const>, View2<S const>, \
                                             kernels::Given<View2<G>>);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE_FOR
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
