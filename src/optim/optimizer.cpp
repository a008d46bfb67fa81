// SPDX-License-Identifier: Apache-2.0
#include <p3d/optim/optimizer.hpp>

#include <p3d/device/memory.hpp>
#include <p3d/kernels/update.hpp>

#include <cmath>

namespace p3d::optim {

template <class P>
Optimizer<P>::Optimizer(config::Optimizer const& options, layout::StageParams const& params)
    : options_(options), params_(&params) {
  if (options_.type == config::OptimizerType::adamw) {
    auto const n = params.flat_size();
    m_ = device::large_array<Moment>("p3d::optim::first_moment", n);
    v_ = device::large_array<Moment>("p3d::optim::second_moment", n);
  }
}

template <class P>
void Optimizer<P>::apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, View1<Master> master,
                         View1<Gradient> grads, bool keep_gradients) {
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
    auto const range =
        Kokkos::pair<std::int64_t, std::int64_t>(items[i].offset, items[j - 1].offset + items[j - 1].size());
    a.decay = decays ? options_.weight_decay : 0.0;
    View1<Master> const p = Kokkos::subview(master, range);
    View1<Gradient> const g = Kokkos::subview(grads, range);
    if (options_.type == config::OptimizerType::adamw) {
      View1<Moment> const m = Kokkos::subview(m_, range);
      View1<Moment> const v = Kokkos::subview(v_, range);
      kernels::adamw<Master>(exec, a, p, g, m, v);
    } else {
      kernels::sgd<Master>(exec, {lr, a.decay, grad_scale, !keep_gradients}, p, g);
    }
    i = j;
  }
}

double clip_factor(double global_norm, double clip) {
  return clip > 0.0 && global_norm > clip ? clip / global_norm : 1.0;
}

template class Optimizer<device::Fp32>;
template class Optimizer<device::Fp64>;

}  // namespace p3d::optim
