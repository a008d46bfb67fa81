// SPDX-License-Identifier: Apache-2.0
#pragma once
// The feed-forward sub-layers: an MLP that every token goes through, and routed experts (moe.hpp), beside which there
// may be such an MLP, the shared experts.

#include "activation.hpp"
#include "sublayer.hpp"

#include <p3d/kernels/expert_rows.hpp>
#include <p3d/model/moe.hpp>

#include <fmt/format.h>

namespace p3d::model {

/// An MLP: GELU or xIELU, or a SwiGLU or GeGLU of (gate | up). The activation function adds the bias of the first
/// linear. As shared experts its output may have a gate (SharedGate).
template <class P>
class MlpLayer final : public LinearSubLayer<P> {
public:
  using S = typename P::Storage;
  using typename LinearSubLayer<P>::Parts;
  using typename SubLayer<P>::G;
  using typename SubLayer<P>::Sums;
  MlpLayer(config::Config const& c, parallel::TensorParallel& tp, int layer)
      : LinearSubLayer<P>(c, tp, layer),
        activation_(c.model),
        branch_dropout_(kernels::make_dropout(c.model.dropout, c.run.seed,
                                              fmt::format("dropout.layers.{}.mlp.out", layer),
                                              c.model.residual_multiplier)) {}
  BranchEnds<P> ends(LayerCall<P> const& c) const override {
    auto const input = this->stream_.norms_before() ? c.a.norm2_y : c.a.mid;
    return {c.a.mid,          input,         c.w.norm2,      c.a.norm2(), c.a.branch2, c.w.post_norm2,
            c.a.post_norm2(), c.w.down_bias, branch_dropout_};
  }

private:
  using LinearSubLayer<P>::tp_;
  using LinearSubLayer<P>::sizes_;
  /// Buffers that all layers share are as wide as the widest one's.
  Parts parts(LayerCall<P> const& c) const override {
    auto const columns = [](View2<S> v, std::int64_t n) { return View2<S>(v.data(), v.extent(0), n); };
    auto& a = c.a;
    auto& t = c.t;
    auto const up = sizes_.up(), ffn = sizes_.ffn;
    auto const inner = columns(a.up, up), outer = columns(a.act, ffn);
    return {c.w.up, c.w.down, c.w.up_bias, inner, outer, columns(t.dup, up), columns(t.dact, ffn), a.up, t.dup};
  }
  void project_rows(LayerCall<P> const& c, parallel::WholeRows<S>& normed) const override {
    parallel::column_linear_forward<S>(*tp_, normed, c.w.up.value, View1<S const>(), parts(c).inner);
    if (sizes_.moe.gates_shared) SharedGate<P>::forward(tp_->exec, c.w.moe, normed.view, c.a.moe);
  }
  void apply(LayerCall<P> const& c) const override {
    auto const p = parts(c);
    activation_forward<S>(activation_, tp_->exec, p.inner, p.outer, p.in_bias.value, c.w.slopes.value);
  }
  View2<S> branch_input(LayerCall<P> const& c) const override {
    auto const p = parts(c);
    if (!sizes_.moe.gates_shared) return p.outer;
    Kokkos::deep_copy(tp_->exec, p.d_outer, p.outer);
    kernels::gate_rows<S>(tp_->exec, c.a.moe.shared_gates, p.d_outer);
    return p.d_outer;
  }
  void prepare_backward(LayerCall<P> const& c) const override {
    auto const p = parts(c);
    if (c.discarded.activation) apply(c);
    if (sizes_.moe.gates_shared)
      SharedGate<P>::backward(*tp_, c.w.moe, this->ends(c).input, c.a.moe, c.t.moe, p.outer, p.d_outer, c.t.moe.dx);
  }
  void apply_backward(LayerCall<P> const& c, Sums& sums) const override {
    auto const p = parts(c);
    if (activation_.kind == config::Activation::xielu)
      return kernels::xielu_backward<S, G>(tp_->exec, p.inner, c.w.slopes.value, p.d_outer, p.d_inner, p.in_bias.value,
                                           c.w.slopes.grad, sums);
    activation_backward<S>(activation_, tp_->exec, p.inner, p.d_outer, p.d_inner, p.in_bias.value);
  }

  ActivationFunction activation_;
  kernels::Dropout branch_dropout_;
};

/// Routed experts, and the shared ones if the layer has some: these compute while rows are on their way.
template <class P>
class ExpertLayer final : public SubLayer<P> {
public:
  using S = typename P::Storage;
  using typename SubLayer<P>::Sums;
  ExpertLayer(config::Config const& c, parallel::TensorParallel& tp, int layer)
      : SubLayer<P>(c, tp),
        has_shared_(layout::layer_sizes(layout::block_sizes(c), c, layer).ffn > 0),
        shared_(c, tp, layer),
        experts_(c, layer) {}
  BranchEnds<P> ends(LayerCall<P> const& c) const override { return shared_.ends(c); }
  void forward(LayerCall<P> const& c) override {
    auto const store = has_shared_ ? kernels::Store::add : kernels::Store::overwrite;
    auto const meanwhile = [&] {
      if (has_shared_) shared_.forward(c);
    };
    experts_.forward(tp_->exec, c.w.moe, own_rows(*tp_, c.rows), c.kind, ends(c).input, c.a.moe, c.t.moe, store,
                     own_rows(*tp_, c.t.branch), meanwhile);
  }
  void remake(LayerCall<P> const& c) override {
    auto const meanwhile = [&] {
      if (has_shared_) shared_.remake(c);
    };
    experts_.remake(tp_->exec, c.w.moe, own_rows(*tp_, c.rows), ends(c).input, c.a.moe, c.t.moe, meanwhile);
  }
  BranchGradient<P> backward(LayerCall<P> const& c, View2<S const> own, Sums& sums) override {
    experts_backward(c, own);
    if (!has_shared_) return {c.t.moe.dx};
    return with_experts(c, shared_.backward(c, own, sums));
  }
  BranchGradient<P> backward_input(LayerCall<P> const& c, View2<S const> own, Sums& sums) override {
    experts_backward(c, own);
    if (!has_shared_) return {c.t.moe.dx};
    return with_experts(c, shared_.backward_input(c, own, sums));
  }
  void backward_weight(LayerCall<P> const& c, RowsAhead<S>& branches, RowsAhead<S>& inputs, Sums& sums) override {
    shared_.backward_weight(c, branches, inputs, sums);
  }
  bool has_weight_part() const override { return has_shared_; }
  std::vector<std::int64_t> take_counts() override { return experts_.take_counts(); }

private:
  /// Leaves the gradient of the experts' input in c.t.moe.dx.
  void experts_backward(LayerCall<P> const& c, View2<S const> own) {
    if (c.discarded.norm) this->stream_.norm(ends(c));
    experts_.backward(tp_->exec, c.w.moe, own_rows(*tp_, c.rows), ends(c).input, c.a.moe, c.t.moe, own, c.t.moe.dx);
  }
  /// Adds that gradient to the one of the shared experts' input.
  BranchGradient<P> with_experts(LayerCall<P> const& c, BranchGradient<P> const& shared) const {
    kernels::add<S>(tp_->exec, View1<S const>(device::flat(c.t.moe.dx)), device::flat(shared.dnorm));
    return shared;
  }

  using SubLayer<P>::tp_;
  bool has_shared_;
  MlpLayer<P> shared_;
  RoutedExperts<P> experts_;
};

}  // namespace p3d::model
