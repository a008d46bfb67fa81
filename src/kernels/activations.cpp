// SPDX-License-Identifier: Apache-2.0
// GELU, SwiGLU, clamped SwiGLU and GeGLU with the bias of the linear layer before them, forward and backward. Functions
// with a gate differ in what they do with it, which is a struct for each.
#include <p3d/kernels/elementwise.hpp>

#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// The argument 2u of GELU's sigmoid: x/2 (1 + tanh u) = x sigmoid(2u), which has no cancellation at negative x and
/// costs one exponential.
template <class A>
KOKKOS_INLINE_FUNCTION A gelu_argument(A x) {
  constexpr A a = static_cast<A>(1.5957691216057308);  // 2 sqrt(2 / pi)
  return a * (x + static_cast<A>(0.044715) * x * x * x);
}

/// The derivative of gelu_argument.
template <class A>
KOKKOS_INLINE_FUNCTION A gelu_argument_slope(A v) {
  constexpr A a = static_cast<A>(1.5957691216057308), b = static_cast<A>(0.044715);
  A const slope = a * (A(1) + A(3) * b * v * v);
  return slope;
}

/// value[i] = x[i] + bias[i], or x[i] where `bias` is null.
template <class S>
KOKKOS_INLINE_FUNCTION void biased(S const* x, S const* bias, int n, Acc<S>* value) {
  auto const in = read<wide<S>>(x, n);
  if (bias) {
    auto const add = read<wide<S>>(bias, n);
    P3D_SIMD
    for (int i = 0; i < lanes<wide<S>>(n); ++i) value[i] = Acc<S>(in[i]) + Acc<S>(add[i]);
  } else {
    P3D_SIMD
    for (int i = 0; i < lanes<wide<S>>(n); ++i) value[i] = in[i];
  }
}

/// The address of a bias from a column on, as `biased` takes it; null for an empty bias.
template <class S>
KOKKOS_INLINE_FUNCTION S const* bias_from(View1<S const> const& bias, std::int64_t column) {
  return bias.extent(0) != 0 ? &bias(column) : nullptr;
}

}  // namespace

template <class S>
void gelu_forward(ExecSpace const& exec, View2<S const> x, View2<S> y, Given<View1<S const>> bias) {
  for_chunks<wide<S>>(
      "p3d::kernels::gelu_forward", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        Acc<S> v[wide<S>];
        biased(&x(r, c), bias_from<S>(bias, c), n, v);
        auto out = write<wide<S>>(&y(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], v[i] * sigmoid(gelu_argument(v[i])));
        out.store();
      });
}

template <class S>
void gelu_backward(ExecSpace const& exec, View2<S const> x, View2<S const> dy, View2<S> dx,
                   Given<View1<S const>> bias) {
  for_chunks<wide<S>>(
      "p3d::kernels::gelu_backward", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        using A = Acc<S>;
        A value[wide<S>];
        biased(&x(r, c), bias_from<S>(bias, c), n, value);
        auto const g = read<wide<S>>(&dy(r, c), n);
        auto out = write<wide<S>>(&dx(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) {
          A const v = value[i];
          A const u = gelu_argument(v);
          A const e = exp_of(-u);
          A const s = A(1) / (A(1) + e);  // and 1 - s = e s, without cancellation
          put(out[i], g[i] * (s + v * (s * e * s) * gelu_argument_slope(v)));
        }
        out.store();
      });
}

namespace {

/// The gate of SwiGLU: silu(v) = v sigmoid(v).
struct SiluGate {
  template <class A>
  KOKKOS_INLINE_FUNCTION static A value(A v) {
    return v * sigmoid(v);
  }
  template <class A>
  KOKKOS_INLINE_FUNCTION A product(A v, A u) const {
    return value(v) * u;
  }
  /// The gradients of gate v and up u, for that of the product.
  template <class A>
  KOKKOS_INLINE_FUNCTION void backward(A v, A u, A d, A* dgate, A* dup) const {
    A const e = exp_of(-v);
    A const s = A(1) / (A(1) + e);
    *dgate = d * u * s * (A(1) + v * (e * s));
    *dup = d * v * s;
  }
};

/// The gate of GeGLU: gelu(v), as in gelu_forward.
struct GeluGate {
  template <class A>
  KOKKOS_INLINE_FUNCTION static A value(A v) {
    return v * sigmoid(gelu_argument(v));
  }
  template <class A>
  KOKKOS_INLINE_FUNCTION A product(A v, A u) const {
    return value(v) * u;
  }
  template <class A>
  KOKKOS_INLINE_FUNCTION void backward(A v, A u, A d, A* dgate, A* dup) const {
    A const e = exp_of(-gelu_argument(v));
    A const s = A(1) / (A(1) + e);
    *dgate = d * u * (s + v * (s * e * s) * gelu_argument_slope(v));
    *dup = d * v * s;
  }
};

/// The gate of clamped SwiGLU. Beyond a bound a gradient is 0; NaN stays NaN.
struct ClampedGate {
  double alpha, limit;
  template <class A>
  KOKKOS_INLINE_FUNCTION A above(A v) const {
    A const most = static_cast<A>(limit);
    return v > most ? most : v;
  }
  template <class A>
  KOKKOS_INLINE_FUNCTION A both(A u) const {
    A const least = static_cast<A>(-limit), x = above(u);
    return x < least ? least : x;
  }
  template <class A>
  KOKKOS_INLINE_FUNCTION A product(A v, A u) const {
    A const x = above(v);
    return (both(u) + A(1)) * (x * sigmoid(static_cast<A>(alpha) * x));
  }
  template <class A>
  KOKKOS_INLINE_FUNCTION void backward(A v, A u, A d, A* dgate, A* dup) const {
    A const a = static_cast<A>(alpha), x = above(v), y = both(u);
    A const e = exp_of(-a * x);
    A const s = A(1) / (A(1) + e);
    A const of_gate = d * (y + A(1)) * s * (A(1) + a * x * (e * s)), of_up = d * x * s;
    *dgate = v > x ? A(0) : of_gate;
    *dup = u > y || u < y ? A(0) : of_up;
  }
};

template <class Gate, class S>
void gated_forward(char const* label, Gate const& how, ExecSpace const& exec, View2<S const> gate_up, View2<S> y,
                   View1<S const> const& given) {
  auto const width = static_cast<std::int64_t>(y.extent(1));
  View1<S const> const bias = given;  // captured by value
  Gate const function = how;
  for_chunks<wide<S>>(
      label, exec, y.extent(0), width, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        Acc<S> gate[wide<S>], up[wide<S>];
        biased(&gate_up(r, c), bias_from<S>(bias, c), n, gate);
        biased(&gate_up(r, width + c), bias_from<S>(bias, width + c), n, up);
        auto out = write<wide<S>>(&y(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], function.product(gate[i], up[i]));
        out.store();
      });
}

template <class Gate, class S>
void gated_backward(char const* label, Gate const& how, ExecSpace const& exec, View2<S const> gate_up,
                    View2<S const> dy, View2<S> dgate_up, View1<S const> const& given) {
  auto const width = static_cast<std::int64_t>(dy.extent(1));
  View1<S const> const bias = given;  // captured by value
  Gate const function = how;
  for_chunks<wide<S>>(
      label, exec, dy.extent(0), width, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        using A = Acc<S>;
        A gate[wide<S>], up[wide<S>];
        biased(&gate_up(r, c), bias_from<S>(bias, c), n, gate);
        biased(&gate_up(r, width + c), bias_from<S>(bias, width + c), n, up);
        auto const g = read<wide<S>>(&dy(r, c), n);
        auto dgate = write<wide<S>>(&dgate_up(r, c), n);
        auto dup = write<wide<S>>(&dgate_up(r, width + c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) {
          A of_gate, of_up;
          function.backward(gate[i], up[i], A(g[i]), &of_gate, &of_up);
          put(dgate[i], of_gate);
          put(dup[i], of_up);
        }
        dgate.store();
        dup.store();
      });
}

}  // namespace

template <class S>
void swiglu_forward(ExecSpace const& exec, View2<S const> gate_up, View2<S> y, Given<View1<S const>> bias) {
  gated_forward<SiluGate, S>("p3d::kernels::swiglu_forward", {}, exec, gate_up, y, bias);
}

template <class S>
void swiglu_backward(ExecSpace const& exec, View2<S const> gate_up, View2<S const> dy, View2<S> dgate_up,
                     Given<View1<S const>> bias) {
  gated_backward<SiluGate, S>("p3d::kernels::swiglu_backward", {}, exec, gate_up, dy, dgate_up, bias);
}

template <class S>
void geglu_forward(ExecSpace const& exec, View2<S const> gate_up, View2<S> y, Given<View1<S const>> bias) {
  gated_forward<GeluGate, S>("p3d::kernels::geglu_forward", {}, exec, gate_up, y, bias);
}

template <class S>
void geglu_backward(ExecSpace const& exec, View2<S const> gate_up, View2<S const> dy, View2<S> dgate_up,
                    Given<View1<S const>> bias) {
  gated_backward<GeluGate, S>("p3d::kernels::geglu_backward", {}, exec, gate_up, dy, dgate_up, bias);
}

template <class S>
void swiglu_clamped_forward(ExecSpace const& exec, SwigluBounds bounds, View2<S const> gate_up, View2<S> y,
                            Given<View1<S const>> bias) {
  gated_forward<ClampedGate, S>("p3d::kernels::swiglu_clamped_forward", {bounds.alpha, bounds.limit}, exec, gate_up, y,
                                bias);
}

template <class S>
void swiglu_clamped_backward(ExecSpace const& exec, SwigluBounds bounds, View2<S const> gate_up, View2<S const> dy,
                             View2<S> dgate_up, Given<View1<S const>> bias) {
  gated_backward<ClampedGate, S>("p3d::kernels::swiglu_clamped_backward", {bounds.alpha, bounds.limit}, exec, gate_up,
                                 dy, dgate_up, bias);
}

#define P3D_INSTANTIATE(S)                                                                                           \
  template void gelu_forward<S>(ExecSpace const&, View2<S const>, View2<S>, View1<S const>);                         \
  template void gelu_backward<S>(ExecSpace const&, View2<S const>, View2<S const>, View2<S>, View1<S const>);        \
  template void swiglu_forward<S>(ExecSpace const&, View2<S const>, View2<S>, View1<S const>);                       \
  template void swiglu_backward<S>(ExecSpace const&, View2<S const>, View2<S const>, View2<S>, View1<S const>);      \
  template void geglu_forward<S>(ExecSpace const&, View2<S const>, View2<S>, View1<S const>);                        \
  template void geglu_backward<S>(ExecSpace const&, View2<S const>, View2<S const>, View2<S>, View1<S const>);       \
  template void swiglu_clamped_forward<S>(ExecSpace const&, SwigluBounds, View2<S const>, View2<S>, View1<S const>); \
  template void swiglu_clamped_backward<S>(ExecSpace const&, SwigluBounds, View2<S const>, View2<S const>, View2<S>, \
                                           View1<S const>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
