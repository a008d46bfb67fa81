// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bits of the two floating-point types of 16 bits (device/float16.hpp has the types), for the host and for devices.
//
// Conversion from float rounds to nearest, ties to even. A number that is too large becomes infinite; a NaN becomes the
// quiet NaN of its sign. Conversion to float is exact. GPUs have instructions for float16 (their NaN may have another
// sign).

#include <p3d/base/host_device.hpp>

#include <cstdint>
#include <cstring>

namespace p3d::base {

P3D_ALWAYS_INLINE std::uint32_t bits_of_float(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
P3D_ALWAYS_INLINE float float_of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// The smallest sizes of numbers that rounding makes infinite: halfway between the largest number of the type and the
/// next one that it cannot hold.
inline constexpr double bfloat16_rounds_to_infinity = 0x1.ffp127, float16_rounds_to_infinity = 65520.0;

/// The bits of the bfloat16 nearest to x.
P3D_ALWAYS_INLINE std::uint16_t bfloat16_bits(float x) {
  std::uint32_t const bits = bits_of_float(x);
  std::uint32_t const rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  std::uint32_t const quiet = (bits & 0x80000000u) | 0x7fc00000u;
  return static_cast<std::uint16_t>((x != x ? quiet : rounded) >> 16);
}
/// The float that has the value of a bfloat16's bits.
P3D_ALWAYS_INLINE float bfloat16_value(std::uint16_t half) {
  return float_of_bits(static_cast<std::uint32_t>(half) << 16);
}

/// The bits of the float16 nearest to x. There are no branches, so that compilers vectorise loops over it. Adding a
/// power of two rounds |x| to a multiple of that float's last bit: here to the spacing of float16 at |x|, which is
/// constant below the normal range.
P3D_ALWAYS_INLINE std::uint16_t float16_bits(float x) {
#if defined(P3D_ON_NVIDIA)
  std::uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#elif defined(P3D_ON_AMD)
  auto const half = static_cast<_Float16>(x);
  std::uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
#else
  constexpr std::uint32_t least = 113u << 23;  // the smallest normal float16, as a float
  std::uint32_t const bits = bits_of_float(x), sign = bits & 0x80000000u, size = bits ^ sign;
  std::uint32_t const power = size & 0x7f800000u, exponent = power < least ? least : power;
  float const shift = float_of_bits(exponent + (13u << 23));
  std::uint32_t const units = bits_of_float(float_of_bits(size) + shift) - bits_of_float(shift);
  std::uint32_t const finite = ((exponent - least) >> 13) + units;
  std::uint32_t const special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  std::uint32_t const out = size >= 0x47800000u ? special : finite;  // from 65536 on; from 65520 on `units` carries
  return static_cast<std::uint16_t>((sign >> 16) | out);
#endif
}
/// The float that has the value of a float16's bits.
P3D_ALWAYS_INLINE float float16_value(std::uint16_t half) {
#if defined(P3D_ON_NVIDIA)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
#elif defined(P3D_ON_AMD)
  _Float16 value;
  std::memcpy(&value, &half, sizeof value);
  return static_cast<float>(value);
#else
  std::uint32_t const sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
  std::uint32_t const normal = (size << 13) + (112u << 23);
  std::uint32_t const special = (size << 13) + (224u << 23);
  std::uint32_t const tiny = bits_of_float(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24f);
  std::uint32_t out = size < 0x0400u ? tiny : normal;
  out = size >= 0x7c00u ? special : out;
  return float_of_bits(sign | out);
#endif
}

}  // namespace p3d::base
