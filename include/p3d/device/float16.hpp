// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two floating-point types of 16 bits, for storage and messages: arithmetic happens in float. Kokkos' own half types
// are `float` on host builds, so they would save nothing there.
//
//   type      sign  exponent  fraction   largest    smallest normal  unit roundoff
//   bfloat16     1         8         7   3.4e38     1.2e-38          2^-8
//   float16      1         5        10   65504      6.1e-5           2^-11   (IEEE 754 binary16)
//
// base/float16.hpp has the conversions of bits.

#include <p3d/base/float16.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace p3d::device {

/// The upper half of a float (Google's "brain" format).
struct bfloat16 {
  std::uint16_t bits;
  bfloat16() = default;
  KOKKOS_INLINE_FUNCTION explicit bfloat16(float x) : bits(base::bfloat16_bits(x)) {}
  KOKKOS_INLINE_FUNCTION explicit bfloat16(double x) : bfloat16(static_cast<float>(x)) {}
  KOKKOS_INLINE_FUNCTION explicit bfloat16(int x) : bfloat16(static_cast<float>(x)) {}
  KOKKOS_INLINE_FUNCTION operator float() const { return base::bfloat16_value(bits); }
};

/// The 16-bit format of IEEE 754 (binary16).
struct float16 {
  std::uint16_t bits;
  float16() = default;
  KOKKOS_INLINE_FUNCTION explicit float16(float x) : bits(base::float16_bits(x)) {}
  KOKKOS_INLINE_FUNCTION explicit float16(double x) : float16(static_cast<float>(x)) {}
  KOKKOS_INLINE_FUNCTION explicit float16(int x) : float16(static_cast<float>(x)) {}
  KOKKOS_INLINE_FUNCTION operator float() const { return base::float16_value(bits); }
};

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);

/// Rounds to bfloat16 stochastically: up with a probability equal to the part that is cut off, so that the mean of many
/// roundings is x. `random` holds 16 uniform random bits. Infinities and NaN are converted as by bfloat16(x).
KOKKOS_INLINE_FUNCTION bfloat16 round_stochastically(float x, std::uint32_t random) {
  std::uint32_t const bits = base::bits_of_float(x);
  bfloat16 out(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) out.bits = static_cast<std::uint16_t>((bits + (random & 0xffffu)) >> 16);
  return out;
}

}  // namespace p3d::device
