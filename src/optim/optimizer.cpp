// SPDX-License-Identifier: Apache-2.0
#include <p3d/optim/optimizer.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/memory.hpp>

#include <cmath>

namespace p3d::optim {

namespace {

/// The part of an array of all owned runs that belongs to one run; empty for an empty array.
template <class T>
View1<T> part(View1<T> all, layout::OwnedRun const& run) {
  if (all.extent(0) == 0) return {};
  return Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(run.packed, run.packed + run.count));
}

}  // namespace

template <class P>
Optimizer<P>::Optimizer(config::Optimizer const& options, layout::StageParams const& params,
                        layout::StateShard const& shard, bool narrow_moments, bool resident)
    : options_(options), params_(&params) {
  auto const n = shard.owned_size;
  P3D_REQUIRE(resident || !options_.post_validation, "what is taken back is resident");
  if (options_.post_validation) replaced_master_ = device::large_array<Master>("p3d::optim::replaced_weights", n);
  if (!resident || options_.type != config::OptimizerType::adamw) return;
  auto const take = [&]<class M>(Moments<M>& moments, Moments<M>& replaced) {
    moments.m = device::large_array<M>("p3d::optim::first_moment", n);
    moments.v = device::large_array<M>("p3d::optim::second_moment", n);
    if (!options_.post_validation) return;
    replaced.m = device::large_array<M>("p3d::optim::replaced_first_moment", n);
    replaced.v = device::large_array<M>("p3d::optim::replaced_second_moment", n);
  };
  P3D_REQUIRE(!narrow_moments || may_be_narrow, "moments in bfloat16 stand for some in float");
  if (narrow_moments) {
    take(narrow_, replaced_narrow_);
  } else {
    take(wide_, replaced_wide_);
  }
}

template <class P>
template <class Work>
void Optimizer<P>::with_owned(Work const& work) {
  if (narrow_.m.extent(0) > 0) return work(narrow_, replaced_narrow_);
  work(wide_, replaced_wide_);
}

template <class P>
void Optimizer<P>::apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale,
                         layout::OwnedRun const& run, RunViews const& views, bool keep_gradients) {
  with_owned([&]<class M>(Moments<M> const& all, Moments<M> const&) {
    apply_with<M>(exec, step, lr, grad_scale, run, views, keep_gradients, part<M>(all.m, run), part<M>(all.v, run));
  });
}

template <class P>
void Optimizer<P>::try_out(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale,
                           layout::OwnedRun const& run, RunViews const& views) {
  P3D_REQUIRE(options_.post_validation, "an optimizer that keeps what it replaces");
  with_owned([&]<class M>(Moments<M> const& all, Moments<M> const& replaced) {
    apply_with<M>(exec, step, lr, grad_scale, run, views, true, part<M>(all.m, run), part<M>(all.v, run),
                  {part<Master>(replaced_master_, run), part<M>(replaced.m, run), part<M>(replaced.v, run)});
  });
}

template <class P>
void Optimizer<P>::take_back(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> master) {
  Kokkos::deep_copy(exec, master, part<Master>(replaced_master_, run));
  with_owned([&]<class M>(Moments<M> const& all, Moments<M> const& replaced) {
    Kokkos::deep_copy(exec, part<M>(all.m, run), part<M>(replaced.m, run));
    Kokkos::deep_copy(exec, part<M>(all.v, run), part<M>(replaced.v, run));
  });
}

template <class P>
std::int64_t Optimizer<P>::replaced_bytes() const {
  auto const bytes = [](auto const& view) { return static_cast<std::int64_t>(view.span() * sizeof(view(0))); };
  return bytes(replaced_master_) + bytes(replaced_wide_.m) + bytes(replaced_wide_.v) + bytes(replaced_narrow_.m) +
         bytes(replaced_narrow_.v);
}

template <class P>
template <class M>
void Optimizer<P>::apply_with(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale,
                              layout::OwnedRun const& run, RunViews const& views, bool keep_gradients, View1<M> m,
                              View1<M> v, kernels::Replaced<Master, M> const& replaced) {
  kernels::AdamW a;
  a.lr = lr;
  a.beta1 = options_.beta1;
  a.beta2 = options_.beta2;
  a.eps = options_.eps;
  a.correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(step));
  a.correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(step));
  a.grad_scale = grad_scale;
  a.clear_gradient = !keep_gradients;
  // Neighbouring parameters with the same decay form one segment: the padding between them is zero, and an update keeps
  // it zero.
  std::vector<kernels::DecaySegment> segments;
  layout::for_parameters(*params_, run.begin, run.count,
                         [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                           auto const at = item.offset + first - run.begin;
                           double const decay = item.spec->decay ? options_.weight_decay : 0.0;
                           if (segments.empty() || segments.back().decay != decay) segments.push_back({at, 0, decay});
                           segments.back().count = at + count - segments.back().begin;
                         });
  if (options_.type == config::OptimizerType::adamw) {
    kernels::adamw<Master, Gradient, M, Storage>(exec, a, segments, views.master, views.grads, m, v, views.storage,
                                                 replaced);
  } else {
    kernels::sgd<Master, Gradient, Storage>(exec, {lr, 0.0, grad_scale, !keep_gradients}, segments, views.master,
                                            views.grads, views.storage, {replaced.p, {}, {}});
  }
}

double clip_factor(double global_norm, double clip) {
  return clip > 0.0 && global_norm > clip ? clip / global_norm : 1.0;
}

#define P3D_INSTANTIATE_WITH(P, M)                                                                                   \
  template void Optimizer<P>::apply_with<M>(ExecSpace const&, std::int64_t, double, double, layout::OwnedRun const&, \
                                            RunViews const&, bool, View1<M>, View1<M>,                               \
                                            kernels::Replaced<P::Master, M> const&);
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
