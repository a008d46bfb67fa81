// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/update.hpp>

#include "launch.hpp"

namespace p3d::kernels {

template <class T>
void adamw(ExecSpace const& exec, AdamW const& step, View1<T> p, View1<T> g, View1<T> m, View1<T> v) {
  bool const clear = step.clear_gradient;
  auto const scale = static_cast<T>(step.grad_scale);
  auto const beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1.0 - step.beta1);
  auto const beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1.0 - step.beta2);
  auto const inverse1 = static_cast<T>(1.0 / step.correction1), inverse2 = static_cast<T>(1.0 / step.correction2);
  auto const lr = static_cast<T>(step.lr), eps = static_cast<T>(step.eps), decay = static_cast<T>(step.decay);
  for_chunks<flat_width>(
      "p3d::kernels::adamw", exec, 1, p.extent(0), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        T* const weight = &p(c);
        T* const first = &m(c);
        T* const second = &v(c);
        T* const gradient = &g(c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          T const d = scale * gradient[i];
          T const a = beta1 * first[i] + rest1 * d;
          T const b = beta2 * second[i] + rest2 * d * d;
          first[i] = a;
          second[i] = b;
          weight[i] -= lr * (a * inverse1 / (std::sqrt(b * inverse2) + eps) + decay * weight[i]);
          gradient[i] = clear ? T(0) : gradient[i];
        }
      });
}

template <class T>
void sgd(ExecSpace const& exec, Sgd const& step, View1<T> p, View1<T> g) {
  auto const rate = static_cast<T>(step.lr), shrink = static_cast<T>(step.decay),
             scale = static_cast<T>(step.grad_scale);
  bool const clear = step.clear_gradient;
  for_chunks<flat_width>(
      "p3d::kernels::sgd", exec, 1, p.extent(0), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        T* const weight = &p(c);
        T* const gradient = &g(c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          weight[i] -= rate * (scale * gradient[i] + shrink * weight[i]);
          gradient[i] = clear ? T(0) : gradient[i];
        }
      });
}

#define P3D_INSTANTIATE(T)                                                                        \
  template void adamw<T>(ExecSpace const&, AdamW const&, View1<T>, View1<T>, View1<T>, View1<T>); \
  template void sgd<T>(ExecSpace const&, Sgd const&, View1<T>, View1<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
