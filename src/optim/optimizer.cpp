// SPDX-License-Identifier: Apache-2.0
#include <p3d/optim/optimizer.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/update.hpp>

#include <cmath>

namespace p3d::optim {

namespace {

/// A part of a view, or nothing of an empty one.
template <class T>
View1<T> part(View1<T> all, std::int64_t begin, std::int64_t end) {
  if (all.extent(0) == 0) return {};
  return Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(begin, end));
}

}  // namespace

template <class P>
Optimizer<P>::Optimizer(config::Optimizer const& options, layout::StageParams const& params,
                        layout::StateShard const& shard, bool narrow_moments, bool resident)
    : options_(options), params_(&params) {
  if (!resident || options_.type != config::OptimizerType::adamw) return;
  auto const n = shard.owned_size;
  auto const take = [&]<class M>(Moments<M>& moments) {
    moments.m = device::large_array<M>("p3d::optim::first_moment", n);
    moments.v = device::large_array<M>("p3d::optim::second_moment", n);
  };
  P3D_REQUIRE(!narrow_moments || may_be_narrow, "moments in bfloat16 stand for some in float");
  if (narrow_moments) {
    take(narrow_);
  } else {
    take(wide_);
  }
}

template <class P>
void Optimizer<P>::apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale,
                         layout::OwnedRun const& run, RunViews const& views, bool keep_gradients) {
  auto const begin = run.packed, end = run.packed + run.count;
  auto const with = [&]<class M>(Moments<M> const& all) {
    apply_with<M>(exec, step, lr, grad_scale, run, views, keep_gradients, part(View1<M>(all.m), begin, end),
                  part(View1<M>(all.v), begin, end));
  };
  if (narrow_.m.extent(0) > 0) return with(narrow_);
  with(wide_);
}

template <class P>
template <class M>
void Optimizer<P>::apply_with(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale,
                              layout::OwnedRun const& run, RunViews const& views, bool keep_gradients, View1<M> m,
                              View1<M> v) {
  kernels::AdamW a;
  a.lr = lr;
  a.beta1 = options_.beta1;
  a.beta2 = options_.beta2;
  a.eps = options_.eps;
  a.correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(step));
  a.correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(step));
  a.grad_scale = grad_scale;
  a.clear_gradient = !keep_gradients;
  // Neighbouring parameters with the same decay form one segment: padding between them is zero and stays zero.
  std::vector<kernels::DecaySegment> segments;
  layout::for_parameters(*params_, run.begin, run.count,
                         [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                           auto const at = item.offset + first - run.begin;
                           double const decay = item.spec->decay ? options_.weight_decay : 0.0;
                           if (segments.empty() || segments.back().decay != decay) segments.push_back({at, 0, decay});
                           segments.back().count = at + count - segments.back().begin;
                         });
  if (options_.type == config::OptimizerType::adamw) {
    kernels::adamw<Master, Gradient, M, Storage>(exec, a, segments, views.master, views.grads, m, v, views.storage);
  } else {
    kernels::sgd<Master, Gradient, Storage>(exec, {lr, 0.0, grad_scale, !keep_gradients}, segments, views.master,
                                            views.grads, views.storage);
  }
}

double clip_factor(double global_norm, double clip) {
  return clip > 0.0 && global_norm > clip ? clip / global_norm : 1.0;
}

#define P3D_INSTANTIATE_WITH(P, M)                                                                                   \
  template void Optimizer<P>::apply_with<M>(ExecSpace const&, std::int64_t, double, double, layout::OwnedRun const&, \
                                            RunViews const&, bool, View1<M>, View1<M>);
#define P3D_INSTANTIATE(P)     \
  template class Optimizer<P>; \
  P3D_INSTANTIATE_WITH(P, P::Moment)
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#if P3D_16BIT
#define P3D_INSTANTIATE(P) P3D_INSTANTIATE_WITH(P, device::bfloat16)
P3D_INSTANTIATE(device::Fp32)
P3D_INSTANTIATE(device::Bf16)
P3D_INSTANTIATE(device::Fp16)
P3D_INSTANTIATE(device::Bf16Gradients)
#undef P3D_INSTANTIATE
#endif
#undef P3D_INSTANTIATE_WITH

}  // namespace p3d::optim
