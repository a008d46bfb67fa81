// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradients of vectors (biases, weights of norms) are sums over rows. A layer registers the matrices that are to be
// summed, and one launch (on devices two) sums them all. The sums are rank-local and kept in double; results do not
// depend on the number of threads.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// Sums that are registered and computed later by finish(). Only one object at a time may have partial sums
/// (add_parts), because they lie in a workspace that all objects share. S and G are explained in common.hpp.
template <class S, class G = Acc<S>>
class ColumnSums {
public:
  static constexpr int most = 16;  ///< sums registered at a time; base::Error beyond
  ColumnSums() = default;
  ColumnSums(ColumnSums const&) = delete;
  ColumnSums& operator=(ColumnSums const&) = delete;
  ~ColumnSums();

  /// Registers sum[c] += sum over rows of m[r, c]. An empty `sum` registers nothing. m must not change before finish().
  void add(View2<S const> m, Given<View1<G>> sum);
  /// Registers two sums of a norm's backward. weight[c] += sum over rows of dy[r, c] xhat[r, c], with xhat = (x - mean)
  /// rstd, or x rstd where `mean` is empty; bias[c] += sum over rows of dy[r, c], unless `bias` is empty. None of the
  /// arguments may change before finish().
  void add_norm(View2<S const> dy, View2<S const> x, View1<Acc<S> const> mean, View1<Acc<S> const> rstd,
                Given<View1<G>> weight, Given<View1<G>> bias);
  /// Returns memory for partial sums, [blocks, sum.extent(0)], one row for each block. The caller's kernel writes them
  /// before finish(), which then computes sum[c] += their sum, in one order (column_sum.hpp).
  View2<double> add_parts(std::int64_t blocks, Given<View1<G>> sum);
  /// The number of rows of a block for add_parts. It is chosen so that six such sums fit the workspace, beside the
  /// partial sums that finish() makes itself.
  static std::int64_t rows_of_part(std::int64_t rows, std::int64_t columns);

  /// Computes all registered sums in one launch, on devices in two. It launches nothing where nothing is registered.
  void finish(ExecSpace const& exec);

  /// One registered sum. It is public only because kernels read it.
  struct Source {
    S const* values;      ///< [rows, cols] to be summed; null: `parts` are summed
    double const* parts;  ///< [rows, cols] partial sums of add_parts or of cut_rows; else null
    S const* x;           ///< the input of a norm, beside `values` = dy; else null
    Acc<S> const *mean, *rstd;
    G *sum, *weight;
    std::int64_t rows, cols, stride, x_stride;
    std::int64_t first;  ///< number of its first piece of work, among the pieces of all sums of one launch
  };

private:
  /// A cleared entry at the end of sources_; throws base::Error where all are in use.
  Source& next();
  /// The next `doubles` of the shared workspace, which is reserved for this object until finish().
  double* take(std::int64_t doubles);
  /// Sums blocks of rows of tall matrices into the workspace, and replaces each matrix by its partial sums (devices
  /// only).
  void cut_rows(ExecSpace const& exec);

  Source sources_[most];
  int count_ = 0;
  double* workspace_ = nullptr;
  std::int64_t used_ = 0;  ///< doubles of the workspace in use
};

}  // namespace p3d::kernels
