// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/qk_norm.hpp>

#include <p3d/collectives/collectives.hpp>

namespace p3d::parallel {

using kernels::Acc;
using kernels::QkNormShape;
using kernels::QkNormVectors;

namespace {

/// The sums over all ranks of what `compute` leaves in `sums`; empty where no other rank has a part in them.
template <class A, class Compute>
View2<A const> summed(TensorParallel& tp, QkNormShape const& shape, View2<A> sums, Compute const& compute) {
  if (!shape.sums_over_ranks()) return {};
  compute();
  collectives::all_reduce<A>(tp.exec, *tp.comm, device::flat(sums));
  return sums;
}

}  // namespace

template <class S>
void qk_norm_forward(TensorParallel& tp, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                     View2<Acc<S>> sums, View2<S> qkv, View2<S> before, View2<Acc<S>> scale) {
  auto const all = summed<Acc<S>>(tp, shape, sums, [&] { kernels::qk_norm_squares<S>(tp.exec, shape, qkv, sums); });
  kernels::qk_norm_forward<S>(tp.exec, shape, weights, all, qkv, before, scale);
}

template <class S, class G>
void qk_norm_backward(TensorParallel& tp, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                      View2<Acc<S>> sums, View2<S> dqkv, View2<S const> before, View2<Acc<S> const> scale,
                      QkNormVectors<G> const& gradients, kernels::ColumnSums<S, G>& sums_over_rows) {
  auto const all = summed<Acc<S>>(
      tp, shape, sums, [&] { kernels::qk_norm_products<S>(tp.exec, shape, weights, dqkv, before, scale, sums); });
  kernels::qk_norm_backward<S, G>(tp.exec, shape, weights, all, dqkv, before, scale, gradients, sums_over_rows);
}

#define P3D_INSTANTIATE(S)                                                                                            \
  template void qk_norm_forward<S>(TensorParallel&, QkNormShape const&, QkNormVectors<S const> const&, View2<Acc<S>>, \
                                   View2<S>, View2<S>, View2<Acc<S>>);                                                \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G)                                                                     \
  template void qk_norm_backward<S, G>(TensorParallel&, QkNormShape const&, QkNormVectors<S const> const&, \
                                       View2<Acc<S>>, View2<S>, View2<S const>, View2<Acc<S> const>,       \
                                       QkNormVectors<G> const&, kernels::ColumnSums<S, G>&);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
P3D_INSTANTIATE_GRADIENT(device::bfloat16, device::bfloat16)
#undef P3D_INSTANTIATE
#undef P3D_INSTANTIATE_GRADIENT

}  // namespace p3d::parallel
