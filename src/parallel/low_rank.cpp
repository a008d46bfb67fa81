// SPDX-License-Identifier: Apache-2.0
// PowerSGD. With g_v the gradient of worker v, e_v what it remembers and M_v = g_v + e_v:
//   P = orthonormal(sum over v of M_v Q),  Q = sum over v of M_v^T P,  applied P Q^T,  e_v = M_v - P Q^T / V
// Sums over v are all-reduces over dp, of all matrices of the stage in one message. Where an axis divides the rows of a
// matrix, Q and the products of P's columns are sums over it, too; where it divides columns, P and the products of Q's.
#include "compressors.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/low_rank.hpp>

#include <utility>
#include <vector>

namespace p3d::parallel {

namespace {

using device::View1;
using device::View2;

template <class T>
class LowRank final : public GradientCompressor<T> {
  using GradientCompressor<T>::plan_;

public:
  using typename GradientCompressor<T>::Number;

  LowRank(device::ExecSpace const& exec, layout::Compression plan, layout::StageParams const& params,
          View1<T> gradients, CompressionGroups const& groups, std::uint64_t seed)
      : GradientCompressor<T>(std::move(plan)),
        exec_(exec),
        gradients_(gradients),
        replicas_(&groups(layout::Axis::dp)),
        left_(device::large_array<Number>("p3d::parallel::low_rank_left", plan_.left_numbers)),
        right_(device::large_array<Number>("p3d::parallel::low_rank_right", plan_.right_numbers)),
        residuals_(
            device::large_array<Number>("p3d::parallel::residuals", plan_.workers_of_replica() * plan_.state_elements)),
        dots_("p3d::parallel::low_rank_products", static_cast<std::size_t>(plan_.rank)),
        norms_("p3d::parallel::low_rank_norms", static_cast<std::size_t>(plan_.rank)) {
    for (auto const& t : plan_.low_rank) {
      auto const& item = params.items()[t.item];
      Matrix m{item.offset, item.rows, item.cols, t.left, t.right};
      m.row_ranks = &groups(layout::cutting_axes(*item.spec, 0));
      m.column_ranks = &groups(layout::cutting_axes(*item.spec, 1));
      m.key = base::random_key(seed, "low_rank." + item.spec->name);
      m.first_column = item.col_begin;
      matrices_.push_back(m);
    }
    for (auto const& t : plan_.tensors)
      plain_.push_back({params.items()[t.item].offset, params.items()[t.item].size()});
  }

  std::int64_t bytes() const override {
    return bytes_in(left_) + bytes_in(right_) + bytes_in(residuals_) + bytes_in(dots_) + bytes_in(norms_);
  }

  void take(int index, std::int64_t step, double factor) override {
    step_ = step;
    auto const by = static_cast<Number>(factor);
    if (index == 0) kernels::fill<Number>(exec_, left_, Number(0));
    for (auto const& m : matrices_) {
      auto const n = m.rows * m.cols;
      kernels::add_scaled<T>(exec_, by, part<T const>(gradients_, m.offset, n),
                             part<Number>(of_worker(index), m.offset, n));
    }
    auto at = plan_.left_numbers - plan_.plain_numbers;
    for (auto const& [offset, size] : plain_) {
      kernels::add_scaled<T>(exec_, by, part<T const>(gradients_, offset, size), part<Number>(left_, at, size));
      at += size;
    }
  }

  void start() override {
    for (auto const& m : matrices_) {
      // Rows of Q without a direction are drawn anew: all at first, and those that the matrix had no directions for.
      for (int turn = 0; turn < 2; ++turn) {
        square_norms(right(m), true, *m.column_ranks);
        kernels::draw_zero_rows<Number>(exec_, m.key, static_cast<std::uint64_t>(step_), m.first_column, norms_,
                                        right(m));
        orthonormalise(right(m), true, *m.column_ranks);
      }
      for (int j = 0; j < plan_.workers_of_replica(); ++j)
        kernels::add_left<Number>(exec_, remembered(m, j), right(m), left(m));
      sum_over(*m.column_ranks, part<Number>(left_, m.left, m.rows * plan_.rank));
    }
    request_ = collectives::start_all_reduce<Number>(exec_, *replicas_, left_);
  }

  void add_up() override {
    if (request_.active()) request_.wait();
    kernels::fill<Number>(exec_, right_, Number(0));
    for (auto const& m : matrices_) {
      orthonormalise(left(m), false, *m.row_ranks);
      for (int j = 0; j < plan_.workers_of_replica(); ++j)
        kernels::add_right<Number>(exec_, remembered(m, j), left(m), right(m));
      sum_over(*m.row_ranks, part<Number>(right_, m.right, m.cols * plan_.rank));
    }
    request_ = collectives::start_all_reduce<Number>(exec_, *replicas_, right_);
  }

  void finish(double factor) override {
    if (request_.active()) request_.wait();
    auto const by = static_cast<Number>(1.0 / factor), share = Number(1) / static_cast<Number>(plan_.workers);
    for (auto const& m : matrices_) {
      kernels::write_product<T>(exec_, by, left(m), right(m), View2<T>(gradients_.data() + m.offset, m.rows, m.cols));
      for (int j = 0; j < plan_.workers_of_replica(); ++j)
        kernels::subtract_product<Number>(exec_, share, left(m), right(m), remembered(m, j));
    }
    auto at = plan_.left_numbers - plan_.plain_numbers;
    for (auto const& [offset, size] : plain_) {
      auto const to = part<T>(gradients_, offset, size);
      kernels::write_scaled<T>(exec_, by, part<Number const>(left_, at, size), to);
      at += size;
    }
  }

  View1<Number> of_worker(int index) const override {
    auto const n = plan_.state_elements;
    return part<Number>(residuals_, index * n, n);
  }
  View1<Number> factors() const override { return right_; }

private:
  /// A matrix that is compressed: its place among the gradients, and those of its factors.
  struct Matrix {
    std::int64_t offset, rows, cols, left, right;
    base::RandomKey key = {};
    std::int64_t first_column = 0;  ///< number of the first column in the whole matrix
    comm::Communicator *row_ranks = nullptr,
                       *column_ranks = nullptr;  ///< the ranks that have the other rows, or columns
  };

  template <class E, class V>
  static View1<E> part(V const& whole, std::int64_t first, std::int64_t count) {
    return Kokkos::subview(whole, Kokkos::pair<std::int64_t, std::int64_t>(first, first + count));
  }
  View2<Number> left(Matrix const& m) const { return View2<Number>(left_.data() + m.left, m.rows, plan_.rank); }
  View2<Number> right(Matrix const& m) const { return View2<Number>(right_.data() + m.right, plan_.rank, m.cols); }
  View2<Number> remembered(Matrix const& m, int index) const {
    return View2<Number>(of_worker(index).data() + m.offset, m.rows, m.cols);
  }

  void sum_over(comm::Communicator& ranks, View1<Number> numbers) {
    if (ranks.size() > 1) collectives::all_reduce<Number>(exec_, ranks, numbers);
  }

  /// Makes the vectors of x orthonormal (Gram and Schmidt): its columns, or its rows. `ranks` divide them.
  void orthonormalise(View2<Number> x, bool rows, comm::Communicator& ranks) {
    square_norms(x, rows, ranks);
    for (int i = 0; i < plan_.rank; ++i) {
      kernels::dot_products<Number>(exec_, x, rows, i, dots_);
      sum_over(ranks, dots_);
      kernels::orthogonalise<Number>(exec_, x, rows, i, dots_, norms_);
    }
  }

  void square_norms(View2<Number> x, bool rows, comm::Communicator& ranks) {
    kernels::square_norms<Number>(exec_, x, rows, norms_);
    sum_over(ranks, norms_);
  }

  device::ExecSpace exec_;
  View1<T> gradients_;
  comm::Communicator* replicas_;
  std::vector<Matrix> matrices_;
  std::vector<std::pair<std::int64_t, std::int64_t>> plain_;  ///< offset and size of what is not compressed
  device::Owned1<Number> left_;   ///< P of all matrices, then the sums of what is not compressed
  device::Owned1<Number> right_;  ///< Q of all matrices, from step to step
  device::Owned1<Number> residuals_, dots_, norms_;
  comm::Request request_;
  std::int64_t step_ = 0;
};

}  // namespace

template <class T>
std::unique_ptr<GradientCompressor<T>> make_low_rank(device::ExecSpace const& exec, layout::Compression plan,
                                                     layout::StageParams const& params, View1<T> gradients,
                                                     CompressionGroups const& groups, std::uint64_t seed) {
  return std::make_unique<LowRank<T>>(exec, std::move(plan), params, gradients, groups, seed);
}

#define P3D_INSTANTIATE(T)                                                                                        \
  template std::unique_ptr<GradientCompressor<T>> make_low_rank<T>(device::ExecSpace const&, layout::Compression, \
                                                                   layout::StageParams const&, View1<T>,          \
                                                                   CompressionGroups const&, std::uint64_t);
P3D_GRADIENT_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
