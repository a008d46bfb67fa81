// SPDX-License-Identifier: Apache-2.0
#pragma once
// Latents for tests of context parallelism: keys and values are a matrix times a short row of each token.

#include <p3d/parallel/context.hpp>
#include <p3d/parallel/linear.hpp>

#include <cstdint>

namespace p3d::test {

template <class S>
class MadeKeys final : public parallel::TravellingLatents<S> {
public:
  using A = kernels::Acc<S>;
  using typename parallel::TravellingLatents<S>::Heads;
  /// `own` are the rank's rows, `up` [key_columns() + value_columns(), latent] makes keys and values of them.
  MadeKeys(parallel::ContextHeads const& heads, device::Owned2<S> own, device::Owned2<S> up)
      : heads_(heads),
        own_(own),
        up_(up),
        gradient_("p3d::test::gradient", own.extent(0), own.extent(1)),
        dup_("p3d::test::dup", up.extent(0), up.extent(1)) {}
  void own(device::View2<S> rows) const override { Kokkos::deep_copy(rows, own_); }
  void expand(Heads heads, device::View2<S const> latents, device::View2<S> keys,
              device::View2<S> values) const override {
    parallel::local_linear_forward<S>(tp_, latents, of_keys<S const>(heads, up_), keys);
    parallel::local_linear_forward<S>(tp_, latents, of_values<S const>(heads, up_), values);
  }
  void expand_backward(Heads heads, device::View2<S const> latents, device::View2<S const> dkeys,
                       device::View2<S const> dvalues, device::View2<A> dlatents) const override {
    parallel::local_linear_backward_input<S, A>(tp_, dkeys, of_keys<S const>(heads, up_), dlatents);
    parallel::local_linear_backward_input<S, A>(tp_, dvalues, of_values<S const>(heads, up_), dlatents,
                                                kernels::Store::add);
    parallel::linear_backward_weight<S, A>({}, dkeys, latents, of_keys<A>(heads, dup_));
    parallel::linear_backward_weight<S, A>({}, dvalues, latents, of_values<A>(heads, dup_));
  }
  device::View2<S> gradient() const override { return gradient_; }
  /// The gradient of `up`.
  device::View2<A> matrix_gradient() const { return dup_; }

private:
  template <class T>
  device::View2<T> of_keys(Heads heads, device::View2<T> all) const {
    return device::rows(all, heads.first * heads_.head_dim, (heads.first + heads.number) * heads_.head_dim);
  }
  template <class T>
  device::View2<T> of_values(Heads heads, device::View2<T> all) const {
    auto const keys = heads_.key_columns(), each = heads_.values();
    return device::rows(all, keys + heads.first * each, keys + (heads.first + heads.number) * each);
  }

  parallel::ContextHeads heads_;
  device::Owned2<S> own_, up_, gradient_;
  device::Owned2<A> dup_;
  mutable parallel::TensorParallel tp_;
};

}  // namespace p3d::test
