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
Optimizer<P>::Optimizer(config::Optimizer const& options, layout::StageParams const& params, bool narrow_moments)
    : options_(options), params_(&params) {
  if (options_.type != config::OptimizerType::adamw) return;
  auto const n = params.flat_size();
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
void Optimizer<P>::apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, View1<Master> master,
                         View1<Gradient> grads, View1<Storage> storage, bool keep_gradients) {
  if (narrow_.m.extent(0) > 0)
    return update(exec, step, lr, grad_scale, master, grads, storage, keep_gradients, narrow_);
  update(exec, step, lr, grad_scale, master, grads, storage, keep_gradients, wide_);
}

template <class P>
template <class M>
void Optimizer<P>::update(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, View1<Master> master,
                          View1<Gradient> grads, View1<Storage> storage, bool keep_gradients,
                          Moments<M> const& moments) {
  kernels::AdamW a;
  a.lr = lr;
  a.beta1 = options_.beta1;
  a.beta2 = options_.beta2;
  a.eps = options_.eps;
  a.correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(step));
  a.correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(step));
  a.grad_scale = grad_scale;
  a.clear_gradient = !keep_gradients;
  auto const& items = params_->items();
  // Neighbouring parameters with the same decay form one range: padding between them is zero and stays zero.
  for (std::size_t i = 0; i < items.size();) {
    bool const decays = items[i].spec->decay;
    std::size_t j = i;
    while (j < items.size() && items[j].spec->decay == decays) ++j;
    auto const begin = items[i].offset, end = items[j - 1].offset + items[j - 1].size();
    a.decay = decays ? options_.weight_decay : 0.0;
    auto const p = part(master, begin, end);
    auto const g = part(grads, begin, end);
    auto const s = part(storage, begin, end);
    if (options_.type == config::OptimizerType::adamw) {
      kernels::adamw<Master, Gradient, M, Storage>(exec, a, p, g, part(View1<M>(moments.m), begin, end),
                                                   part(View1<M>(moments.v), begin, end), s);
    } else {
      kernels::sgd<Master, Gradient, Storage>(exec, {lr, a.decay, grad_scale, !keep_gradients}, p, g, s);
    }
    i = j;
  }
}

double clip_factor(double global_norm, double clip) {
  return clip > 0.0 && global_norm > clip ? clip / global_norm : 1.0;
}

#define P3D_INSTANTIATE(P) template class Optimizer<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::optim
