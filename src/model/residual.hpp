// SPDX-License-Identifier: Apache-2.0
#pragma once
// The residual stream of a layer with pre-norm (GPT-2, Llama), and the norms on it. Each sub-layer reads the norm of
// the stream and ends in a branch that is added to it: x becomes x + dropout(branch + bias). The stream owns what is
// fused between two sub-layers: forward adds a branch and computes the next norm in one pass over the rows; backward of
// a norm also sums the bias gradient of the branch behind it and applies the dropout mask of the branch before it.
//
// Example, a layer of two sub-layers:  x -> norm1 -> attention -> + -> x_mid -> norm2 -> MLP -> + -> y

#include <p3d/kernels/elementwise.hpp>
#include <p3d/model/block.hpp>

namespace p3d::model {

/// The two points at which a sub-layer meets the stream: its norm reads it, and its branch is added to it.
template <class P>
struct BranchEnds {
  View2<typename P::Storage> x;  ///< the stream in front of the sub-layer, which its norm reads
  NormWeights<P> const& norm_weights;
  NormActivations<P> norm;
  Vector<P> const& bias;  ///< added to the branch; may be empty
  kernels::Dropout const& dropout;
};

/// The gradients that the backward pass of a sub-layer gives to the stream.
template <class P>
struct BranchGradient {
  View2<typename P::Storage> dnorm;    ///< the gradient of its norm's output
  View1<typename P::Gradient> bias{};  ///< the gradient of its bias, still to be summed; empty: nothing to do
};

/// The work of one layer on its stream. It keeps nothing of a call.
template <class P>
class ResidualStream {
public:
  using S = typename P::Storage;
  using G = typename P::Gradient;
  using Sums = kernels::ColumnSums<S, G>;
  ResidualStream(config::Config const& config, parallel::TensorParallel& tp) : tp_(&tp), norm_(config) {}

  ExecSpace const& exec() const { return tp_->exec; }
  /// Computes the norm of the stream in front of a sub-layer.
  void norm(BranchEnds<P> const& to) const { norm_.forward(tp_->exec, to.norm_weights, to.x, to.norm); }
  /// Adds the branch of `from`, which is in c.t.branch, and computes the norm of the next sub-layer.
  void add(LayerCall<P> const& c, BranchEnds<P> const& from, BranchEnds<P> const& to) const {
    kernels::ResidualSum<S> sum;
    sum.rows = own_rows(*tp_, c.rows);
    sum.x = from.x;
    sum.branch = own_rows(*tp_, c.t.branch);
    sum.bias = from.bias.value;
    if (trains(c.kind)) sum.dropout = from.dropout;
    norm_.forward(tp_->exec, to.norm_weights, sum, to.x, to.norm);
  }
  /// Adds the last branch: y is the layer's output, which may be its input.
  void end(LayerCall<P> const& c, BranchEnds<P> const& last, View2<S> y) const {
    kernels::Dropout dropout;
    if (trains(c.kind)) dropout = last.dropout;
    kernels::residual_forward<S>(tp_->exec, own_rows(*tp_, c.rows), last.x, own_rows(*tp_, c.t.branch), last.bias.value,
                                 dropout, y);
  }

  /// Returns the gradient of the last branch, for that of y: the rank's rows. It lies in `keep`; with `keep` empty in
  /// scratch, or it is d itself.
  View2<S> end_backward(LayerCall<P> const& c, BranchEnds<P> const& last, View2<S> keep, View2<S> d) const {
    auto const out = gradient_memory(c, last.dropout, keep);
    if (out.data() == nullptr) return d;
    kernels::residual_backward<S>(tp_->exec, own_rows(*tp_, c.rows), d, last.dropout, out);
    return out;
  }
  /// Turns d into the gradient of the stream in front of a sub-layer whose branch has the gradient `own`. Returns the
  /// gradient of the branch of the sub-layer `before`, if there is one, as end_backward() does.
  View2<S> begin_backward(LayerCall<P> const& c, BranchEnds<P> const& at, View2<S const> own,
                          BranchGradient<P> const& gradient, BranchEnds<P> const* before, View2<S> keep, Sums& sums,
                          View2<S> d) const {
    kernels::NormBranches<S, G> branches;
    branches.after = own;
    branches.after_bias = gradient.bias;
    if (before) {
      branches.rows = own_rows(*tp_, c.rows);
      branches.dropout = before->dropout;
      branches.before = gradient_memory(c, before->dropout, keep);
    }
    norm_.backward(tp_->exec, at.norm_weights, gradient.dnorm, at.x, at.norm, kernels::Store::add, d, branches, sums);
    return branches.before.data() != nullptr ? branches.before : d;
  }
  /// The bias gradient that begin_backward() sums from the branch's gradient `own`: `grad`, or none where dnorm comes
  /// to lie in the memory of `own`; there it is summed at once.
  View1<G> bias_to_sum(LayerCall<P> const& c, View2<S const> own, View1<G> grad) const {
    bool const stays = c.t.dnorm.data() != c.t.branch.data() || own.data() != own_rows(*tp_, c.t.branch).data();
    if (stays) return grad;
    kernels::bias_backward<S, G>(tp_->exec, own, grad);
    return {};
  }
  /// A norm's output for backward, made again where it was discarded; with `gather` on its way into scratch.
  parallel::WholeRows<S> norm_output(LayerCall<P> const& c, BranchEnds<P> const& at, bool gather) const {
    if (c.discarded.norm) norm(at);
    if (!gather) return {at.norm.y, {}};
    return parallel::start_gather_rows<S>(*tp_, at.norm.y, c.t.gathered);
  }

private:
  View2<S> gradient_memory(LayerCall<P> const& c, kernels::Dropout const& dropout, View2<S> keep) const {
    if (keep.data() != nullptr) return keep;
    return dropout.active() ? own_rows(*tp_, c.t.branch) : View2<S>();
  }

  parallel::TensorParallel* tp_;
  NormLayer<P> norm_;
};

}  // namespace p3d::model
