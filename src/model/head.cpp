// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/head.hpp>

#include <p3d/model/embedding.hpp>

#include <p3d/kernels/cross_entropy.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <utility>

namespace p3d::model {

template <class P>
Head<P>::Head(config::Config const& c, parallel::TensorParallel& tp, int pipeline_rank)
    : tp_(&tp),
      block_(vocabulary_block(c, tp, pipeline_rank)),
      factor_(1.0 / c.model.logits_scaling),
      softcap_(c.model.logits_softcap) {}

template <class P>
void Head<P>::scale(View2<S const> x, View2<S> y) const {
  kernels::multiply<S>(tp_->exec, factor_, x, y);
}

template <class P>
void Head<P>::logits(Matrix<P> const& weight, View2<S const> input, View2<S> gathered, View2<S> out) const {
  auto rows = parallel::start_gather_rows<S>(*tp_, input, gathered, parallel::Gather::in_chunks);
  parallel::column_linear_forward<S>(*tp_, rows, weight.value, View1<S const>(), out);
  kernels::cap_logits<S>(tp_->exec, softcap_, out);
}

template <class P>
void Head<P>::forward(Matrix<P> const& weight, HeadUse<P> const& use, Workspace<P>& t, View1<double> total) const {
  logits(weight, use.input, t.block.gathered, use.logits);
  parallel::vocab_loss_forward<S>(*tp_, block_, use.logits, use.targets, {use.lse, t.row_max, t.sums}, total);
}

template <class P>
void Head<P>::forward_parts(Matrix<P> const& weight, HeadUse<P> const& use, Workspace<P>& t, View1<A> part) const {
  logits(weight, use.input, t.block.gathered, use.logits);
  auto const tokens = static_cast<std::int64_t>(use.targets.extent(0));
  View1<A> const top(part.data(), tokens);
  kernels::logits_parts<S>(tp_->exec, use.logits, block_.valid_rows, block_.begin, use.targets, top, top,
                           View2<A>(part.data() + tokens, 2, tokens));
}

template <class P>
void Head<P>::combine(int ranks, View1<A const> parts, HeadUse<P> const& use, Workspace<P>& t,
                      View1<double> total) const {
  kernels::combine_parts<A>(tp_->exec, ranks, parts, t.row_max, t.sums);
  kernels::cross_entropy_loss<A>(tp_->exec, use.targets, t.row_max, t.sums, use.lse, total);
}

template <class P>
void Head<P>::backward(Matrix<P> const& weight, HeadUse<P> const& use, double scale, Workspace<P>& t, View2<S> d,
                       bool adds_weight, std::function<void()> const& ready) const {
  parallel::WholeRows<S> input;
  if (adds_weight) input = parallel::start_gather_rows<S>(*tp_, use.input, t.block.gathered);
  parallel::vocab_loss_backward<S>(*tp_, block_, use.targets, use.lse, static_cast<A>(scale), use.logits, softcap_);
  auto sum = parallel::column_linear_backward_input<S>(*tp_, use.logits, weight.value, d);
  // The weight's GEMM hides the sum over tp.
  bool const hides = tp_->size() > 1 || !ready;
  if (adds_weight && hides) add_weight(weight, use, input);
  sum.wait();
  if (ready) ready();
  if (adds_weight && !hides) add_weight(weight, use, input);
}

template <class P>
void Head<P>::backward_weight(Matrix<P> const& weight, HeadUse<P> const& use, Workspace<P>& t) const {
  auto input = parallel::start_gather_rows<S>(*tp_, use.input, t.block.gathered);
  add_weight(weight, use, input);
}

template <class P>
void Head<P>::add_weight(Matrix<P> const& weight, HeadUse<P> const& use, parallel::WholeRows<S>& input) const {
  parallel::linear_backward_weight<S, typename P::Gradient>(tp_->exec, use.logits, input.wait(), weight.grad);
}

#define P3D_INSTANTIATE(P) template class Head<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
