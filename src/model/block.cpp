// SPDX-License-Identifier: Apache-2.0
// A layer as a walk over its sub-layers. Forward leaves a branch in scratch and adds it where the next norm is
// computed; backward goes the other way and hands the gradient of a branch from norm to norm.
#include <p3d/model/block.hpp>

#include "attention.hpp"
#include "feed_forward.hpp"
#include "latent_attention.hpp"

namespace p3d::model {

namespace {

template <class P>
using SubLayers = std::vector<std::unique_ptr<SubLayer<P>>>;

/// Computes the norm of sub-layer i, of what the one before it leaves; `sum_is_there`: of a sum that was kept.
template <class P>
void enter(SubLayers<P> const& all, LayerCall<P> const& c, std::size_t i, bool sum_is_there) {
  auto const& stream = all[i]->stream();
  auto const ends = all[i]->ends(c);
  if (i == 0 || sum_is_there)
    stream.norm(ends);
  else
    stream.add(c, all[i - 1]->ends(c), ends);
}

/// Backward through all sub-layers by one of their calls. With `y` gradients of branches stay in the sums that they end
/// in, or where a norm follows in the place of the branches.
template <class P, class Differentiate>
void walk_back(SubLayers<P> const& all, LayerCall<P> const& c, Differentiate differentiate,
               View2<typename P::Storage> y, View2<typename P::Storage> d) {
  typename SubLayer<P>::Sums sums;
  auto const& stream = all.back()->stream();
  auto own = stream.end_backward(c, all.back()->ends(c), y, sums, d);
  for (auto i = all.size(); i-- > 0;) {
    auto const ends = all[i]->ends(c);
    auto const gradient = (*all[i].*differentiate)(c, own, sums);
    if (i == 0) {
      stream.begin_backward(c, ends, own, gradient, nullptr, {}, sums, d);
    } else {
      auto const before = all[i - 1]->ends(c);
      own = stream.begin_backward(c, ends, own, gradient, &before, y.data() ? ends.x : y, sums, d);
    }
  }
  sums.finish(stream.exec());
}

}  // namespace

template <class P>
NormLayer<P>::NormLayer(config::Config const& c)
    : layernorm_(c.model.norm == config::Norm::layernorm), eps_(c.model.norm_eps), offset_(c.model.norm_offset) {}

template <class P>
void NormLayer<P>::forward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> x,
                           NormActivations<P> const& out) const {
  if (layernorm_) {
    kernels::layernorm_forward<S>(exec, x, {w.weight.value, offset_}, w.bias.value, eps_, out.y, out.mean, out.scale);
  } else {
    kernels::rmsnorm_forward<S>(exec, x, {w.weight.value, offset_}, eps_, out.y, out.scale);
  }
}

template <class P>
void NormLayer<P>::forward(ExecSpace const& exec, NormWeights<P> const& w, kernels::ResidualSum<S> const& sum,
                           View2<S> x, NormActivations<P> const& out) const {
  if (layernorm_) {
    kernels::layernorm_forward<S>(exec, sum, x, {w.weight.value, offset_}, w.bias.value, eps_, out.y, out.mean,
                                  out.scale);
  } else {
    kernels::rmsnorm_forward<S>(exec, sum, x, {w.weight.value, offset_}, eps_, out.y, out.scale);
  }
}

template <class P>
void NormLayer<P>::backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                            NormActivations<P> const& saved, kernels::Store store, View2<S> dx) const {
  kernels::ColumnSums<S, G> sums;
  backward(exec, w, dy, x, saved, store, dx, {}, sums);
  sums.finish(exec);
}

template <class P>
void NormLayer<P>::backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                            NormActivations<P> const& saved, kernels::Store store, View2<S> dx,
                            kernels::NormBranches<S, G> const& branches, kernels::ColumnSums<S, G>& sums) const {
  if (layernorm_) {
    kernels::layernorm_backward<S, G>(exec, dy, x, {w.weight.value, offset_}, saved.mean, saved.scale, store, dx,
                                      w.weight.grad, w.bias.grad, branches, sums);
  } else {
    kernels::rmsnorm_backward<S, G>(exec, dy, x, {w.weight.value, offset_}, saved.scale, store, dx, w.weight.grad,
                                    branches, sums);
  }
}

template <class P>
TransformerBlock<P>::TransformerBlock(config::Config const& c, parallel::TensorParallel& tp, int layer) : tp_(&tp) {
  if (c.model.mla.on())
    sublayers_.push_back(std::make_unique<LatentAttention<P>>(c, tp, layer));
  else
    sublayers_.push_back(std::make_unique<GroupedQueryAttention<P>>(c, tp, layer));
  if (c.model.has_experts(layer))
    sublayers_.push_back(std::make_unique<ExpertLayer<P>>(c, tp, layer));
  else
    sublayers_.push_back(std::make_unique<MlpLayer<P>>(c, tp, layer));
}

template <class P>
TransformerBlock<P>::TransformerBlock(TransformerBlock&&) noexcept = default;
template <class P>
TransformerBlock<P>::~TransformerBlock() = default;

template <class P>
void TransformerBlock<P>::forward(LayerCall<P> const& c, View2<S> y) {
  for (std::size_t i = 0; i < sublayers_.size(); ++i) {
    enter(sublayers_, c, i, false);
    sublayers_[i]->forward(c);
  }
  sublayers_.back()->stream().end(c, sublayers_.back()->ends(c), y);
}

template <class P>
void TransformerBlock<P>::remake(LayerCall<P> const& c, bool sums_are_there) {
  for (std::size_t i = 0; i < sublayers_.size(); ++i) {
    enter(sublayers_, c, i, sums_are_there);
    bool const needs_branch = i + 1 < sublayers_.size() || sublayers_[i]->stream().norms_after();
    if (sums_are_there || !needs_branch)
      sublayers_[i]->remake(c);
    else
      sublayers_[i]->forward(c);
  }
  if (!sums_are_there) sublayers_.back()->stream().norm_branch(c, sublayers_.back()->ends(c));
}

template <class P>
void TransformerBlock<P>::backward(LayerCall<P> const& c, View2<S> d) {
  walk_back<P>(sublayers_, c, &SubLayer<P>::backward, {}, d);
}

template <class P>
void TransformerBlock<P>::backward_input(LayerCall<P> const& c, View2<S> y, View2<S> d) {
  walk_back<P>(sublayers_, c, &SubLayer<P>::backward_input, y, d);
}

template <class P>
void TransformerBlock<P>::backward_weight(LayerCall<P> const& c, View2<S> y) {
  std::vector<SubLayer<P>*> parts;
  std::vector<typename RowsAhead<S>::Rows> branches, inputs;
  for (auto i = sublayers_.size(); i-- > 0;) {
    auto const ends = sublayers_[i]->ends(c);
    if (sublayers_[i]->has_weight_part()) {
      parts.push_back(sublayers_[i].get());
      branches.push_back({sublayers_[i]->stream().norms_after() ? ends.branch : y});
      inputs.push_back({ends.input, sublayers_[i]->gathers_input()});
    }
    y = ends.x;  // the sum that the branch before ends in
  }
  typename SubLayer<P>::Sums sums;
  RowsAhead<S> branch(*tp_, std::move(branches), c.t.branch), input(*tp_, std::move(inputs), c.t.gathered);
  for (auto* part : parts) part->backward_weight(c, branch, input, sums);
  sums.finish(tp_->exec);
}

template <class P>
std::vector<std::int64_t> TransformerBlock<P>::take_counts() {
  return sublayers_.back()->take_counts();
}

#define P3D_INSTANTIATE(P)     \
  template class NormLayer<P>; \
  template class TransformerBlock<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
