// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two floating-point types of 16 bits, for storage and messages: arithmetic happens in float. Kokkos' own half types
// are `float` on host builds, so they would save nothing there.
//
//   type      sign  exponent  fraction   largest    smallest normal  unit roundoff
//   bfloat16     1         8         7   3.4e38     1.2e-38          2^-8
//   float16      1         5        10   65504      6.1e-5           2^-11   (IEEE 754 binary16)
//
// Conversion from float rounds to nearest, ties to even; what is too large becomes infinite; a NaN becomes the quiet
// NaN of its sign. Conversion to float is exact.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <cstring>

namespace p3d::device {

namespace detail {
KOKKOS_INLINE_FUNCTION std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
KOKKOS_INLINE_FUNCTION float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

KOKKOS_INLINE_FUNCTION std::uint16_t bfloat16_bits(float x) {
  std::uint32_t const bits = bits_of(x);
  std::uint32_t const rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  std::uint32_t const quiet = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Without branches, so that compilers vectorise it. A number below the normal range is rounded by adding a float whose
/// last bit is worth 2^-24, the smallest float16.
KOKKOS_INLINE_FUNCTION std::uint16_t float16_bits(float x) {
  std::uint32_t const bits = bits_of(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  std::uint32_t const normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  std::uint32_t const tiny = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
  std::uint32_t const special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  std::uint32_t out = size < (113u << 23) ? tiny : normal;
  out = size >= 0x47800000u ? special : out;  // from 65536 on; 65520 to 65536 round up to infinity by themselves
  return static_cast<std::uint16_t>(sign | out);
}
KOKKOS_INLINE_FUNCTION float float16_value(std::uint16_t half) {
  std::uint32_t const sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
  std::uint32_t const normal = (size << 13) + (112u << 23);
  std::uint32_t const special = (size << 13) + (224u << 23);
  std::uint32_t const tiny = bits_of(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24f);
  std::uint32_t out = size < 0x0400u ? tiny : normal;
  out = size >= 0x7c00u ? special : out;
  return float_of(sign | out);
}
}  // namespace detail

/// The upper half of a float (Google's "brain" format).
struct bfloat16 {
  std::uint16_t bits;
  bfloat16() = default;
  KOKKOS_INLINE_FUNCTION explicit bfloat16(float x) : bits(detail::bfloat16_bits(x)) {}
  KOKKOS_INLINE_FUNCTION explicit bfloat16(double x) : bfloat16(static_cast<float>(x)) {}
  KOKKOS_INLINE_FUNCTION operator float() const { return detail::float_of(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE 754 binary16.
struct float16 {
  std::uint16_t bits;
  float16() = default;
  KOKKOS_INLINE_FUNCTION explicit float16(float x) : bits(detail::float16_bits(x)) {}
  KOKKOS_INLINE_FUNCTION explicit float16(double x) : float16(static_cast<float>(x)) {}
  KOKKOS_INLINE_FUNCTION operator float() const { return detail::float16_value(bits); }
};

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);

/// Stochastic rounding to bfloat16: up with the probability of the part that is cut off, so that the mean of many
/// roundings is x. `random`: 16 uniform random bits. Infinite and NaN as in the other conversion.
KOKKOS_INLINE_FUNCTION bfloat16 round_stochastically(float x, std::uint32_t random) {
  std::uint32_t const bits = detail::bits_of(x);
  bfloat16 out(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) out.bits = static_cast<std::uint16_t>((bits + (random & 0xffffu)) >> 16);
  return out;
}

}  // namespace p3d::device
