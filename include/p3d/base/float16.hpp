// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bits of the two floating-point types of 16 bits (device/float16.hpp has the types), for the host and for devices.
//
// Conversion from float rounds to nearest, ties to even; what is too large becomes infinite; a NaN becomes the quiet
// NaN of its sign. Conversion to float is exact.

#include <p3d/base/host_device.hpp>

#include <cstdint>
#include <cstring>

namespace p3d::base {

P3D_HOST_DEVICE inline std::uint32_t bits_of_float(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
P3D_HOST_DEVICE inline float float_of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

P3D_HOST_DEVICE inline std::uint16_t bfloat16_bits(float x) {
  std::uint32_t const bits = bits_of_float(x);
  std::uint32_t const rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  std::uint32_t const quiet = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
P3D_HOST_DEVICE inline float bfloat16_value(std::uint16_t half) {
  return float_of_bits(static_cast<std::uint32_t>(half) << 16);
}

/// Without branches, so that compilers vectorise it. A number below the normal range is rounded by adding a float whose
/// last bit is worth 2^-24, the smallest float16.
P3D_HOST_DEVICE inline std::uint16_t float16_bits(float x) {
  std::uint32_t const bits = bits_of_float(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  std::uint32_t const normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  std::uint32_t const tiny = bits_of_float(float_of_bits(size) + 0.5f) - 0x3f000000u;
  std::uint32_t const special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  std::uint32_t out = size < (113u << 23) ? tiny : normal;
  out = size >= 0x47800000u ? special : out;  // from 65536 on; 65520 to 65536 round up to infinity by themselves
  return static_cast<std::uint16_t>(sign | out);
}
P3D_HOST_DEVICE inline float float16_value(std::uint16_t half) {
  std::uint32_t const sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
  std::uint32_t const normal = (size << 13) + (112u << 23);
  std::uint32_t const special = (size << 13) + (224u << 23);
  std::uint32_t const tiny = bits_of_float(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24f);
  std::uint32_t out = size < 0x0400u ? tiny : normal;
  out = size >= 0x7c00u ? special : out;
  return float_of_bits(sign | out);
}

}  // namespace p3d::base
