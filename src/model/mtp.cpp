// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/mtp.hpp>

#include <p3d/kernels/elementwise.hpp>
#include <p3d/parallel/linear.hpp>

namespace p3d::model {

namespace {

/// The columns of eh_proj, or of its gradient, that meet embeddings and those that meet h^(k-1).
template <class T>
struct Halves {
  View2<T> embeddings, hidden;
  explicit Halves(View2<T> joined) {
    auto const width = static_cast<std::int64_t>(joined.extent(1)) / 2;
    embeddings = device::columns(joined, 0, width);
    hidden = device::columns(joined, width, 2 * width);
  }
};

}  // namespace

template <class P>
MtpBlock<P>::MtpBlock(config::Config const& c, parallel::TensorParallel& tp, int layer)
    : tp_(&tp), norm_(c), layer_(c, tp, layer) {}

template <class P>
void MtpBlock<P>::forward(MtpWeights<P> const& w, SharedEmbedding<P> const& embedding, LayerCall<P> const& c,
                          View2<S const> previous, MtpActivations<P> const& a) {
  auto const& exec = tp_->exec;
  embedding.lookup.look_up(embedding.weight, embedding.tokens, a.embedded, c.t.branch);
  norm_.forward(exec, w.enorm, a.embedded, a.enorm());
  norm_.forward(exec, w.hnorm, previous, a.hnorm());
  Halves<S const> const weight(w.eh_proj.value);
  auto const other = own_rows(*tp_, c.t.branch);
  parallel::local_linear_forward<S>(*tp_, a.enorm_y, weight.embeddings, a.input);
  parallel::local_linear_forward<S>(*tp_, a.hnorm_y, weight.hidden, other);
  kernels::add<S>(exec, View1<S const>(device::flat(other)), device::flat(a.input));
  layer_.forward(c, a.output);
  norm_.forward(exec, w.final_norm, a.output, a.final_norm());
}

template <class P>
View2<typename P::Storage> MtpBlock<P>::backward(MtpWeights<P> const& w, SharedEmbedding<P> const& embedding,
                                                 LayerCall<P> const& c, View2<S const> d, View2<S const> previous,
                                                 MtpActivations<P> const& a) {
  using G = typename P::Gradient;
  using kernels::Store;
  auto const& exec = tp_->exec;
  norm_.backward(exec, w.final_norm, d, a.output, a.final_norm(), Store::overwrite, a.output);
  layer_.backward(c, a.output);
  Halves<G> const gradient(w.eh_proj.grad);
  parallel::linear_backward_weight<S, G>(exec, a.output, a.enorm_y, gradient.embeddings);
  parallel::linear_backward_weight<S, G>(exec, a.output, a.hnorm_y, gradient.hidden);
  Halves<S const> const weight(w.eh_proj.value);
  parallel::local_linear_backward_input<S>(*tp_, a.output, weight.embeddings, a.enorm_y);
  parallel::local_linear_backward_input<S>(*tp_, a.output, weight.hidden, a.hnorm_y);
  norm_.backward(exec, w.enorm, a.enorm_y, a.embedded, a.enorm(), Store::overwrite, a.embedded);
  norm_.backward(exec, w.hnorm, a.hnorm_y, previous, a.hnorm(), Store::overwrite, a.input);
  embedding.lookup.add_gradient(embedding.weight, embedding.tokens, a.embedded, c.t.branch);
  return a.input;
}

#define P3D_INSTANTIATE(P) template class MtpBlock<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
