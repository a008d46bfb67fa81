// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/elementwise.hpp>

#include "launch.hpp"

namespace p3d::kernels {

namespace {

/// x/2 (1 + tanh u) = x sigmoid(2u): no cancellation at negative x, one exponential. This is 2u.
template <class T>
KOKKOS_INLINE_FUNCTION T gelu_argument(T x) {
  constexpr T a = static_cast<T>(1.5957691216057308);  // 2 sqrt(2 / pi)
  return a * (x + static_cast<T>(0.044715) * x * x * x);
}

}  // namespace

template <class T>
void gelu_forward(ExecSpace const& exec, View2<T const> x, View2<T> y) {
  for_chunks<element_width>(
      "p3d::kernels::gelu_forward", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T const* const in = &x(r, c);
        T* const out = &y(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) out[i] = in[i] * sigmoid(gelu_argument(in[i]));
      });
}

template <class T>
void gelu_backward(ExecSpace const& exec, View2<T const> x, View2<T const> dy, View2<T> dx) {
  for_chunks<element_width>(
      "p3d::kernels::gelu_backward", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        constexpr T a = static_cast<T>(1.5957691216057308), b = static_cast<T>(0.044715);
        T const* const in = &x(r, c);
        T const* const g = &dy(r, c);
        T* const out = &dx(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          T const v = in[i];
          T const u = gelu_argument(v);
          T const e = exp_of(-u);
          T const s = T(1) / (T(1) + e);  // and 1 - s = e s, without cancellation
          T const slope = a * (T(1) + T(3) * b * v * v);
          out[i] = g[i] * (s + v * (s * e * s) * slope);
        }
      });
}

template <class T>
void swiglu_forward(ExecSpace const& exec, View2<T const> gate_up, View2<T> y) {
  auto const width = static_cast<std::int64_t>(y.extent(1));
  for_chunks<element_width>(
      "p3d::kernels::swiglu_forward", exec, y.extent(0), width, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T const* const gate = &gate_up(r, c);
        T const* const up = &gate_up(r, width + c);
        T* const out = &y(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
      });
}

template <class T>
void swiglu_backward(ExecSpace const& exec, View2<T const> gate_up, View2<T const> dy, View2<T> dgate_up) {
  auto const width = static_cast<std::int64_t>(dy.extent(1));
  for_chunks<element_width>(
      "p3d::kernels::swiglu_backward", exec, dy.extent(0), width, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T const* const gate = &gate_up(r, c);
        T const* const up = &gate_up(r, width + c);
        T const* const g = &dy(r, c);
        T* const dgate = &dgate_up(r, c);
        T* const dup = &dgate_up(r, width + c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          T const v = gate[i], u = up[i], d = g[i];
          T const e = exp_of(-v);
          T const s = T(1) / (T(1) + e);
          dgate[i] = d * u * s * (T(1) + v * (e * s));
          dup[i] = d * v * s;
        }
      });
}

#define P3D_INSTANTIATE(T)                                                                    \
  template void gelu_forward<T>(ExecSpace const&, View2<T const>, View2<T>);                  \
  template void gelu_backward<T>(ExecSpace const&, View2<T const>, View2<T const>, View2<T>); \
  template void swiglu_forward<T>(ExecSpace const&, View2<T const>, View2<T>);                \
  template void swiglu_backward<T>(ExecSpace const&, View2<T const>, View2<T const>, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
