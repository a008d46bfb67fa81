// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradients of vectors (biases, weights of norms) are sums over rows. A layer puts down what is to be summed, and one
// launch (on devices two) sums it all. Rank-local; in double; results do not depend on the number of threads.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// Sums that wait for finish(). One at a time may have something to finish: partial sums lie in a workspace that all
/// share. S, G: see common.hpp.
template <class S, class G = Acc<S>>
class ColumnSums {
public:
  static constexpr int most = 12;  ///< that wait at a time; base::Error beyond
  ColumnSums() = default;
  ColumnSums(ColumnSums const&) = delete;
  ColumnSums& operator=(ColumnSums const&) = delete;
  ~ColumnSums();

  /// sum[c] += sum over rows of m[r, c]. Empty `sum`: nothing. m must stay as it is until finish().
  void add(View2<S const> m, Given<View1<G>> sum);
  /// weight[c] += sum over rows of dy[r, c] xhat[r, c], with xhat = (x - mean) rstd, or x rstd where `mean` is empty;
  /// bias[c] += sum over rows of dy[r, c] (may be empty). All must stay as they are until finish().
  void add_norm(View2<S const> dy, View2<S const> x, View1<Acc<S> const> mean, View1<Acc<S> const> rstd,
                Given<View1<G>> weight, Given<View1<G>> bias);
  /// Room for [blocks, sum.extent(0)] partial sums, one row a block, which the caller's kernel writes; sum[c] += their
  /// sum, block after block.
  View2<double> add_parts(std::int64_t blocks, Given<View1<G>> sum);
  /// Rows of a block such that six such sums have room, and the matrices that finish() cuts.
  static std::int64_t rows_of_part(std::int64_t rows, std::int64_t columns);

  /// One launch, on devices two. None where nothing waits.
  void finish(ExecSpace const& exec);

  /// One matrix that waits. Public for the kernels' sake.
  struct Source {
    S const* values;  ///< [rows, cols], or
    double const* parts;
    S const* x;  ///< beside `values`: of a norm
    Acc<S> const *mean, *rstd;
    G *sum, *weight;
    std::int64_t rows, cols, stride, x_stride;
    std::int64_t first;  ///< piece of work of this one, among those of all that wait
  };

private:
  Source& next();
  double* take(std::int64_t doubles);
  void cut_rows(ExecSpace const& exec);

  Source sources_[most];
  int count_ = 0;
  double* workspace_ = nullptr;
  std::int64_t used_ = 0;  ///< doubles of it
};

}  // namespace p3d::kernels
