// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sub-layers of a layer: attention, an MLP, routed experts. Each has the same calls, from its input to its
// branch (residual.hpp) and back, so that a layer is a list of them.
//
// Over tp a sub-layer makes one sum of N x hidden forward and one backward (latent attention sums latents there:
// latent_attention.hpp). Each is an all-reduce; under sequence
// parallelism it is a reduce-scatter and an all-gather (before forward's column-parallel linear, and of the gradient of
// the row-parallel one), and backward gathers the input of the column-parallel linear once more: only the rank's rows
// of it are kept. A norm of all queries and keys of a token adds a small sum each way (parallel/qk_norm.hpp).

#include "residual.hpp"

#include <p3d/parallel/linear.hpp>

#include <cstdint>
#include <vector>

namespace p3d::model {

/// Rows that linears multiply in the weight part of a backward pass, of one sub-layer after the other. Those of the
/// next one are gathered while a GEMM reads those before.
template <class S>
class RowsAhead {
public:
  /// The rows of the rank for one sub-layer, and whether it multiplies those of the other ranks of tp, too.
  struct Rows {
    View2<S const> own;
    bool gathers = true;
  };
  /// `rows` stand in the order of use. `whole` is memory for all rows.
  RowsAhead(parallel::TensorParallel& tp, std::vector<Rows> rows, View2<S> whole)
      : tp_(&tp), rows_(std::move(rows)), whole_(whole) {
    start();
  }
  View2<S const> own() const { return rows_[at_].own; }
  /// All rows, of a sub-layer that gathers them.
  View2<S const> wait() { return coming_.wait(); }
  /// The rows of wait() have been read: starts to gather the next ones.
  void next() {
    ++at_;
    start();
  }

private:
  void start() {
    if (at_ < rows_.size() && rows_[at_].gathers) coming_ = parallel::start_gather_rows<S>(*tp_, own(), whole_);
  }

  parallel::TensorParallel* tp_;
  std::vector<Rows> rows_;
  View2<S> whole_;
  std::size_t at_ = 0;
  parallel::WholeRows<S> coming_;
};

/// One sub-layer of one layer.
template <class P>
class SubLayer {
public:
  using S = typename P::Storage;
  using G = typename P::Gradient;
  using Sums = kernels::ColumnSums<S, G>;
  SubLayer(config::Config const& config, parallel::TensorParallel& tp) : tp_(&tp), stream_(config, tp) {}
  SubLayer(SubLayer const&) = delete;
  SubLayer& operator=(SubLayer const&) = delete;
  virtual ~SubLayer() = default;

  /// The points at which it meets the stream of a call.
  virtual BranchEnds<P> ends(LayerCall<P> const& c) const = 0;
  /// From its input to its branch, in c.t.branch.
  virtual void forward(LayerCall<P> const& c) = 0;
  /// Forward of training again, up to the last linear: what backward needs. The same kernels on the same numbers, so
  /// the same bits; dropout follows from its counters.
  virtual void remake(LayerCall<P> const& c) = 0;
  /// From the gradient `own` of its branch to that of its input; weight gradients add up, those of biases and
  /// norms when `sums` are finished. The sum over tp and the gathered input overlap with GEMMs of weight gradients.
  virtual BranchGradient<P> backward(LayerCall<P> const& c, View2<S const> own, Sums& sums) = 0;
  /// backward() without the gradients of linears and their biases. What backward_weight() needs for them stays in c.a.
  virtual BranchGradient<P> backward_input(LayerCall<P> const& c, View2<S const> own, Sums& sums) = 0;
  /// The gradients that backward_input() has left out. It reads no weights. `branches`: gradients of branches,
  /// `inputs`: inputs of sub-layers.
  virtual void backward_weight(LayerCall<P> const& c, RowsAhead<S>& branches, RowsAhead<S>& inputs, Sums& sums) = 0;
  /// False: backward_input() leaves nothing out.
  virtual bool has_weight_part() const { return true; }
  /// False: under sequence parallelism it reads the rank's rows of its input alone.
  virtual bool gathers_input() const { return true; }
  /// RoutedExperts::take_counts; empty without experts.
  virtual std::vector<std::int64_t> take_counts() { return {}; }
  ResidualStream<P> const& stream() const { return stream_; }

protected:
  parallel::TensorParallel* tp_;
  ResidualStream<P> stream_;
};

/// A sub-layer between two linears: one that makes the input of a function of its own, and a row-parallel one that
/// multiplies what the function gives. Without overrides the first one is column-parallel.
template <class P>
class LinearSubLayer : public SubLayer<P> {
public:
  using S = typename P::Storage;
  using G = typename P::Gradient;
  using typename SubLayer<P>::Sums;
  LinearSubLayer(config::Config const& c, parallel::TensorParallel& tp, int layer)
      : SubLayer<P>(c, tp), sizes_(layout::layer_sizes(layout::block_sizes(c), c, layer)) {}

  void remake(LayerCall<P> const& c) final {
    project(c);
    apply(c);
  }
  void forward(LayerCall<P> const& c) final {
    remake(c);
    parallel::row_linear_forward<S>(*tp_, branch_input(c), parts(c).out.value, c.t.branch);
  }
  BranchGradient<P> backward(LayerCall<P> const& c, View2<S const> own, Sums& sums) final {
    return differentiate(c, own, true, sums);
  }
  /// The gradient of `inner` takes its memory: by a copy, or the views of c.a and c.t change places.
  BranchGradient<P> backward_input(LayerCall<P> const& c, View2<S const> own, Sums& sums) final {
    auto const gradient = differentiate(c, own, false, sums);
    auto const p = parts(c);
    if (c.fixed_memory) {
      Kokkos::deep_copy(tp_->exec, p.inner, p.d_inner);
    } else {
      p.kept_inner = p.d_inner;
      p.scratch_inner = p.inner;
    }
    return gradient;
  }
  void backward_weight(LayerCall<P> const& c, RowsAhead<S>& branches, RowsAhead<S>& inputs, Sums& sums) final {
    auto const p = parts(c);
    sums.add(branches.own(), this->ends(c).bias.grad);
    sums.add(p.inner, p.in_bias.grad);
    parallel::linear_backward_weight<S, G>(tp_->exec, branches.wait(), p.outer, p.out.grad);
    branches.next();
    project_backward_weight(c, inputs);
    inputs.next();
  }

protected:
  /// The linears and what is between them: `inner` and `outer` are the input and the output of the function.
  struct Parts {
    Matrix<P> const &in, &out;
    Vector<P> const& in_bias;
    View2<S> inner, outer, d_inner, d_outer;
    View2<S>&kept_inner, &scratch_inner;  ///< the views of `inner` in c.a and of `d_inner` in c.t
  };
  virtual Parts parts(LayerCall<P> const& c) const = 0;
  /// The first linear, of the sub-layer's input: fills `inner`.
  virtual void project(LayerCall<P> const& c) const {
    auto rows = parallel::start_gather_rows<S>(*tp_, this->ends(c).input, c.t.gathered, parallel::Gather::in_chunks);
    project_rows(c, rows);
  }
  /// The column-parallel linear, of its input with all rows, which are on their way. It waits for them.
  virtual void project_rows(LayerCall<P> const& /*c*/, parallel::WholeRows<S>& /*normed*/) const {}
  /// The backward of project(), from `d_inner` to c.t.dnorm; with `weights` it adds the gradients of its weights.
  /// `normed` are all rows of the input on their way; it has none where they were not started yet.
  virtual void project_backward(LayerCall<P> const& c, bool weights, parallel::WholeRows<S> normed, Sums& sums) const {
    auto const p = parts(c);
    auto sum = parallel::column_linear_backward_input<S>(*tp_, p.d_inner, p.in.value, c.t.dnorm);
    if (normed.view.data() == nullptr) normed = stream_.input(c, this->ends(c), false);
    if (weights) {
      parallel::linear_backward_weight<S, G>(tp_->exec, p.d_inner, normed.wait(), p.in.grad);
      sums.add(p.d_inner, p.in_bias.grad);
    }
    sum.wait();
  }
  /// The weight gradients that project_backward() has left out. `inner` holds its gradient.
  virtual void project_backward_weight(LayerCall<P> const& c, RowsAhead<S>& inputs) const {
    auto const p = parts(c);
    parallel::linear_backward_weight<S, G>(tp_->exec, p.inner, inputs.wait(), p.in.grad);
  }
  /// The function: fills `outer` and what its backward needs.
  virtual void apply(LayerCall<P> const& c) const = 0;
  /// The input of the last linear.
  virtual View2<S> branch_input(LayerCall<P> const& c) const { return parts(c).outer; }
  /// Makes `outer` again where it was discarded. `d_outer` is there.
  virtual void prepare_backward(LayerCall<P> const& c) const = 0;
  /// The function's backward: fills `d_inner`. Gradients of its own weights add up when `sums` are finished.
  virtual void apply_backward(LayerCall<P> const& c, Sums& sums) const = 0;

  using SubLayer<P>::tp_;
  using SubLayer<P>::stream_;
  BlockSizes sizes_;

private:
  BranchGradient<P> differentiate(LayerCall<P> const& c, View2<S const> own, bool weights, Sums& sums) const {
    auto const ends = this->ends(c);
    auto const p = parts(c);
    auto gathering = parallel::start_gather_rows<S>(*tp_, own, c.t.branch, parallel::Gather::in_chunks);
    parallel::WholeRows<S> normed;
    if (tp_->sequence && weights && this->gathers_input()) normed = stream_.input(c, ends, true);
    auto const bias = weights ? stream_.bias_to_sum(c, own, ends.bias.grad, sums) : View1<G>();
    parallel::row_linear_backward_input<S>(*tp_, gathering, p.out.value, p.d_outer);
    auto const branch = gathering.view;
    prepare_backward(c);
    if (weights) parallel::linear_backward_weight<S, G>(tp_->exec, branch, p.outer, p.out.grad);
    apply_backward(c, sums);
    project_backward(c, weights, std::move(normed), sums);
    return {own_rows(*tp_, c.t.dnorm), bias};
  }
};

}  // namespace p3d::model
