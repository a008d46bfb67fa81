// SPDX-License-Identifier: Apache-2.0
#pragma once
// The residual stream of a layer, and the norms on it. Each sub-layer reads the norm of the stream and ends in a branch
// that is added to it: x becomes x + dropout(branch + bias). The stream owns what is fused between two sub-layers:
// forward adds a branch and computes the next norm in one pass over the rows; backward of a norm also sums the bias
// gradient of the branch behind it and applies the dropout mask of the branch before it.
//
// Example, a layer of two sub-layers:  x -> norm1 -> attention -> + -> x_mid -> norm2 -> MLP -> + -> y
//
// With norms behind the sub-layers (model.norm_placement) x becomes x + dropout(norm(branch + bias)). Then branch +
// bias is kept for backward, and its gradient takes its place. Without norms in front a sub-layer reads the stream
// itself.

#include <p3d/kernels/elementwise.hpp>
#include <p3d/model/block.hpp>

namespace p3d::model {

/// The two points at which a sub-layer meets the stream: it reads the stream, and its branch is added to it.
template <class P>
struct BranchEnds {
  View2<typename P::Storage> x;      ///< the stream in front of the sub-layer
  View2<typename P::Storage> input;  ///< the sub-layer's input: the norm of x, or x
  NormWeights<P> const& norm_weights;
  NormActivations<P> norm;
  View2<typename P::Storage> branch;  ///< branch + bias, where a norm follows
  NormWeights<P> const& post_weights;
  NormActivations<P> post_norm;  ///< of that norm, without its output
  Vector<P> const& bias;         ///< added to the branch; may be empty
  kernels::Dropout const& dropout;
};

/// The gradients that the backward pass of a sub-layer gives to the stream.
template <class P>
struct BranchGradient {
  View2<typename P::Storage> dnorm;    ///< the gradient of its input
  View1<typename P::Gradient> bias{};  ///< the gradient of its bias, still to be summed; empty: nothing to do
};

/// The work of one layer on its stream. It keeps nothing of a call.
template <class P>
class ResidualStream {
public:
  using S = typename P::Storage;
  using G = typename P::Gradient;
  using Sums = kernels::ColumnSums<S, G>;
  ResidualStream(config::Config const& config, parallel::TensorParallel& tp)
      : tp_(&tp), norm_(config), before_(config.model.norms_before()), after_(config.model.norms_after()) {}

  ExecSpace const& exec() const { return tp_->exec; }
  bool norms_before() const { return before_; }
  bool norms_after() const { return after_; }
  /// Computes the norm of the stream in front of a sub-layer, if there is one.
  void norm(BranchEnds<P> const& to) const {
    if (before_) norm_.forward(tp_->exec, to.norm_weights, to.x, to.norm);
  }
  /// Computes the norm of a branch, which is in c.t.branch, in place, if there is one; keeps what its backward needs.
  void norm_branch(LayerCall<P> const& c, BranchEnds<P> const& from) const {
    if (!after_) return;
    auto out = from.post_norm;
    out.y = own_rows(*tp_, c.t.branch);
    kernels::ResidualSum<S> sum;
    sum.branch = out.y;
    sum.bias = from.bias.value;
    norm_.forward(tp_->exec, from.post_weights, sum, from.branch, out);
  }
  /// Adds the branch of `from`, which is in c.t.branch, and computes the norm of the next sub-layer.
  void add(LayerCall<P> const& c, BranchEnds<P> const& from, BranchEnds<P> const& to) const {
    auto const sum = sum_of(c, from);
    if (before_)
      norm_.forward(tp_->exec, to.norm_weights, sum, to.x, to.norm);
    else
      kernels::residual_forward<S>(tp_->exec, sum.rows, sum.x, sum.branch, sum.bias, sum.dropout, to.x);
  }
  /// Adds the last branch: y is the layer's output, which may be its input.
  void end(LayerCall<P> const& c, BranchEnds<P> const& last, View2<S> y) const {
    auto const sum = sum_of(c, last);
    kernels::residual_forward<S>(tp_->exec, sum.rows, sum.x, sum.branch, sum.bias, sum.dropout, y);
  }

  /// Returns the gradient of the last branch, for that of y: the rank's rows. With a norm behind the branch it lies in
  /// last.branch; without in `keep`, and with `keep` empty in scratch, or it is d itself.
  View2<S> end_backward(LayerCall<P> const& c, BranchEnds<P> const& last, View2<S> keep, Sums& sums, View2<S> d) const {
    auto const out = gradient_memory(c, last.dropout, after_ ? View2<S>() : keep);
    if (out.data() != nullptr) kernels::residual_backward<S>(tp_->exec, own_rows(*tp_, c.rows), d, last.dropout, out);
    auto const gradient = out.data() != nullptr ? out : d;
    if (!after_) return gradient;
    norm_.backward(tp_->exec, last.post_weights, gradient, last.branch, last.post_norm, kernels::Store::overwrite,
                   last.branch, {}, sums);
    sums.finish(tp_->exec);  // partial sums of all norms of a layer would not fit their memory
    return last.branch;
  }
  /// Turns d into the gradient of the stream in front of a sub-layer whose branch has the gradient `own`. Returns the
  /// gradient of the branch of the sub-layer `before`, if there is one, as end_backward() does.
  View2<S> begin_backward(LayerCall<P> const& c, BranchEnds<P> const& at, View2<S const> own,
                          BranchGradient<P> const& gradient, BranchEnds<P> const* before, View2<S> keep, Sums& sums,
                          View2<S> d) const {
    if (!before_) {
      kernels::add<S>(tp_->exec, View1<S const>(device::flat(gradient.dnorm)), device::flat(d));
      sums.add(own, gradient.bias);
      return before ? end_backward(c, *before, keep, sums, d) : d;
    }
    kernels::NormBranches<S, G> branches;
    branches.after = own;
    branches.after_bias = gradient.bias;
    if (before && !after_) {
      branches.rows = own_rows(*tp_, c.rows);
      branches.dropout = before->dropout;
      branches.before = gradient_memory(c, before->dropout, keep);
    }
    norm_.backward(tp_->exec, at.norm_weights, gradient.dnorm, at.x, at.norm, kernels::Store::add, d, branches, sums);
    if (before && after_) return end_backward(c, *before, keep, sums, d);
    return branches.before.data() != nullptr ? branches.before : d;
  }
  /// The bias gradient that begin_backward() sums from the branch's gradient `own`: `grad`, or none where dnorm comes
  /// to lie in the memory of `own`; there it is summed at once, and with it all that `sums` has: on devices the partial
  /// sums of one object at a time have a place.
  View1<G> bias_to_sum(LayerCall<P> const& c, View2<S const> own, View1<G> grad, Sums& sums) const {
    bool const stays = c.t.dnorm.data() != c.t.branch.data() || own.data() != own_rows(*tp_, c.t.branch).data();
    if (stays) return grad;
    sums.add(own, grad);
    sums.finish(tp_->exec);
    return {};
  }
  /// A sub-layer's input for backward, made again where it was discarded; with `gather` on its way into scratch.
  parallel::WholeRows<S> input(LayerCall<P> const& c, BranchEnds<P> const& at, bool gather) const {
    if (c.discarded.norm) norm(at);
    if (!gather) return {at.input, {}};
    return parallel::start_gather_rows<S>(*tp_, at.input, c.t.gathered);
  }

private:
  /// The sum that a branch ends in, from its last linear on.
  kernels::ResidualSum<S> sum_of(LayerCall<P> const& c, BranchEnds<P> const& from) const {
    norm_branch(c, from);
    kernels::ResidualSum<S> sum;
    sum.rows = own_rows(*tp_, c.rows);
    sum.x = from.x;
    sum.branch = own_rows(*tp_, c.t.branch);
    if (!after_) sum.bias = from.bias.value;
    sum.dropout = trains(c.kind) ? from.dropout : from.dropout.off();
    return sum;
  }
  View2<S> gradient_memory(LayerCall<P> const& c, kernels::Dropout const& dropout, View2<S> keep) const {
    if (keep.data() != nullptr) return keep;
    return dropout.changes() ? own_rows(*tp_, c.t.branch) : View2<S>();
  }

  parallel::TensorParallel* tp_;
  NormLayer<P> norm_;
  bool before_, after_;
};

}  // namespace p3d::model
