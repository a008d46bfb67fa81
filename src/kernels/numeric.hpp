// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers inside kernels: the type that long sums are kept in, and exponentials and tangents that compilers can
// vectorise. Both are polynomials without branches and calls; devices take their own functions. Example: soft_cap(75,
// 50) = 50 tanh(1.5) = 45.3.

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0
#error "p3d finds NaN and infinity in gradients and weights: compile it without -ffast-math and -ffinite-math-only"
#endif

#include <p3d/base/host_device.hpp>
#include <p3d/kernels/common.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// P3D_SIMD vectorises the loop below it, whose iterations must be independent; the other two allow a sum or a maximum
// over the iterations. HIP gets none of them: its threads are the lanes.
#if (defined(_OPENMP) || defined(__GNUC__)) && !defined(KOKKOS_ENABLE_HIP)
#define P3D_KERNELS_PRAGMA(text) _Pragma(#text)
#define P3D_SIMD P3D_KERNELS_PRAGMA(omp simd)
#define P3D_SIMD_SUM(s) P3D_KERNELS_PRAGMA(omp simd reduction(+ : s))
#define P3D_SIMD_MAX(m) P3D_KERNELS_PRAGMA(omp simd reduction(max : m))
#else
#define P3D_SIMD
#define P3D_SIMD_SUM(s)
#define P3D_SIMD_MAX(m)
#endif
// P3D_UNROLL unrolls the loop below it on GPUs: an array whose indices are then known lies in registers, and in memory
// otherwise. Compilers do that by themselves only for short bodies.
#if defined(P3D_ON_NVIDIA) || defined(P3D_ON_AMD)
#define P3D_UNROLL _Pragma("unroll")
#else
#define P3D_UNROLL
#endif

namespace p3d::kernels {

/// True when kernels run on the host's cores.
inline constexpr bool on_cores = std::is_same_v<device::MemSpace, device::HostSpace>;
/// True when kernels take the host's form, in which one thread walks along a row. In the portable form neighbouring
/// threads take neighbouring columns. Tests build the portable form for the host too (p3d_kernels_portable).
#if defined(P3D_PORTABLE_FORM)
inline constexpr bool on_host = false;
#else
inline constexpr bool on_host = on_cores;
#endif

/// Infinity as a constant. The functions of std::numeric_limits are host functions, which device code may not call.
template <class T>
inline constexpr T infinity = std::numeric_limits<T>::infinity();

/// The type of sums over all rows of a batch and over all elements: these grow with the batch, so single precision
/// would not do.
using Long = double;

/// place = x, rounded to S. Compilers vectorise stores of bits, but not of the struct around them.
template <class S, class T>
KOKKOS_FORCEINLINE_FUNCTION void put(S& place, T const& x) {
  if constexpr (sizeof(S) != 2)
    place = static_cast<S>(x);
  else if constexpr (std::is_same_v<S, T>)
    place.bits = x.bits;
  else
    place.bits = S(x).bits;
}

/// (exp(r) - 1) / r for |r| <= ln(2)/2, by the Taylor polynomial of exp(r) of degree 7 (remainder below 2^-26).
KOKKOS_FORCEINLINE_FUNCTION float exp_slope(float r) {
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  return p * r + 1.0f;
}
/// (exp(r) - 1) / r in double, by the polynomial of degree 13 (remainder below 2^-57).
KOKKOS_FORCEINLINE_FUNCTION double exp_slope(double r) {
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  return p * r + 1.0;
}

/// exp(x) to 2 units in the last place, without branches and calls: 2^n exp(r), |r| <= ln(2)/2, n = round(x / ln 2).
/// Saturates at exp(+-87); NaN stays NaN.
KOKKOS_FORCEINLINE_FUNCTION float exp_polynomial(float x) {
  x = x > 87.0f ? 87.0f : x;
  x = x < -87.0f ? -87.0f : x;
  constexpr float shift = 12582912.0f;  // 1.5 2^23: adding it rounds to an integer in the low bits
  float const shifted = x * 1.44269504088896341f + shift;
  float const n = shifted - shift;
  float const r =
      (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;  // ln 2 in two parts; the first has 15 bits
  float p = exp_slope(r) * r + 1.0f;
  std::int32_t bits, exponent;
  std::memcpy(&bits, &p, 4);
  std::memcpy(&exponent, &shifted, 4);
  bits = static_cast<std::int32_t>(
      static_cast<std::uint32_t>(bits) +
      (static_cast<std::uint32_t>(exponent) << 23));  // p 2^n: the high bits of `shifted` leave at the top
  std::memcpy(&p, &bits, 4);
  return p;
}

/// exp(x) in double, computed as in float. Saturates at exp(+-708).
KOKKOS_FORCEINLINE_FUNCTION double exp_polynomial(double x) {
  x = x > 708.0 ? 708.0 : x;
  x = x < -708.0 ? -708.0 : x;
  constexpr double shift = 6755399441055744.0;  // 1.5 2^52
  double const shifted = x * 1.4426950408889634 + shift;
  double const n = shifted - shift;
  double const r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;  // the first part has 33 bits
  double p = exp_slope(r) * r + 1.0;
  std::int64_t bits, exponent;
  std::memcpy(&bits, &p, 8);
  std::memcpy(&exponent, &shifted, 8);
  bits = static_cast<std::int64_t>(static_cast<std::uint64_t>(bits) + (static_cast<std::uint64_t>(exponent) << 52));
  std::memcpy(&p, &bits, 8);
  return p;
}

/// exp(x), finite for every x that is a number: it saturates at exp(87) (exp(708) in double), so that its product with
/// a zero is zero. The host uses the form that vectorises; its result stays at 1.6e-38 (3e-308) below -87 (-708).
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T exp_of(T x) {
  constexpr T most = sizeof(T) == 4 ? T(87) : T(708);
  if constexpr (on_host)
    return exp_polynomial(x);
  else
    return std::exp(x > most ? most : x);
}

/// tanh(x) to a few units in the last place, in a form that vectorises: m / (m + 2) with m = exp(2x) - 1, which is
/// (2^n - 1) + 2^n (exp(r) - 1) in the terms of exp_polynomial, without cancellation near 0. It is +-1 beyond |x| = 20,
/// where tanh rounds to that; NaN stays NaN.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T tanh_polynomial(T x) {
  x = x > T(20) ? T(20) : x;
  x = x < T(-20) ? T(-20) : x;
  constexpr bool single = sizeof(T) == 4;
  constexpr T shift = single ? T(12582912.0) : T(6755399441055744.0);
  constexpr T ln2_high = single ? T(0.693145751953125) : T(6.93147180369123816490e-01);
  constexpr T ln2_low = single ? T(1.42860682030941723e-6) : T(1.90821492927058770002e-10);
  T const y = x + x;
  T const shifted = y * T(1.4426950408889634) + shift;
  T const n = shifted - shift;
  T const r = (y - n * ln2_high) - n * ln2_low;
  using Bits = std::conditional_t<single, std::uint32_t, std::uint64_t>;
  constexpr Bits one = static_cast<Bits>(single ? 0x3f800000u : 0x3ff0000000000000u);  // the bits of 1
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof(T));
  bits = one + (bits << (single ? 23 : 52));
  T power;  // 2^n
  std::memcpy(&power, &bits, sizeof(T));
  T const m = (power - T(1)) + power * (exp_slope(r) * r);
  return m / (m + T(2));
}

/// cap tanh(x / cap): x, held between -cap and cap (Gemma 2, arXiv 2408.00118). Its derivative is 1 - (result / cap)^2.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T soft_cap(T x, T cap) {
  if constexpr (on_host)
    return cap * tanh_polynomial(x / cap);
  else
    return cap * std::tanh(x / cap);
}
/// The derivative of soft_cap, by its result.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T soft_cap_slope(T result, T cap) {
  T const t = result / cap;
  return T(1) - t * t;
}

/// 1 / (1 + exp(-x)), finite for every finite x.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T sigmoid(T x) {
  return T(1) / (T(1) + exp_of(-x));
}

}  // namespace p3d::kernels
