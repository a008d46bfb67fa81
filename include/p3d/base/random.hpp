// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011) from Random123. A number is a pure function of (seed, purpose, stream, index), so every layout draws the
// same ones: weights are indexed by the global element of their parameter, dropout by the global sample and the element
// in it, data by step and global sample.
//
// All functions may be called on host and device; there is no state.
//
// Example: dropout of element 5 of global sample 70 is random_word(random_key(seed, "dropout site"), 70, 5), on any
// rank.

#include <p3d/base/hash.hpp>
#include <p3d/base/host_device.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__HIPCC__)
// Random123 marks its functions for CUDA's compiler alone. The standard headers that it includes must not be marked;
// SSE, which is for the host, is switched off.
#define R123_USE_SSE 0
#include <Random123/features/compilerfeatures.h>
#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>
#include <stdexcept>
#pragma clang force_cuda_host_device begin
#include <Random123/philox.h>
#pragma clang force_cuda_host_device end
#else
#include <Random123/philox.h>
#endif

namespace p3d::base {

/// The 64-bit Philox key of one seed and purpose.
struct RandomKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

/// One block of random numbers: four 32-bit words.
struct RandomWords {
  std::uint32_t w[4];
};

/// The key of (seed, purpose): the FNV-1a hash (64 bit) of the purpose's bytes, xor the seed, mixed by the splitmix64
/// finaliser. k0 is the low half, k1 the high half.
constexpr RandomKey random_key(std::uint64_t seed, std::string_view purpose) {
  std::uint64_t z = (fnv1a(purpose) ^ seed) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z = z ^ (z >> 31);
  return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32)};
}

/// The block at counter (block low, block high, stream low, stream high).
P3D_ALWAYS_INLINE RandomWords random_block(RandomKey key, std::uint64_t stream, std::uint64_t block) {
  r123::Philox4x32::ctr_type counter = {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                         static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
  r123::Philox4x32::key_type k = {{key.k0, key.k1}};
  auto const r = philox4x32(counter, k);
  return {{r.v[0], r.v[1], r.v[2], r.v[3]}};
}

/// Word number `index` of a stream: it lies in block index / 4, at index % 4.
P3D_HOST_DEVICE inline std::uint32_t random_word(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  return random_block(key, stream, index / 4).w[index % 4];
}

/// A 53-bit uniform number in (0, 1] from two words (the first is the high half): (bits + 1/2) 2^-53, at least 2^-54;
/// only the largest number rounds up to 1.
P3D_HOST_DEVICE inline double uniform_from(std::uint32_t high, std::uint32_t low) {
  std::uint64_t const bits = ((static_cast<std::uint64_t>(high) << 32) | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 1.1102230246251565e-16;  // 2^-53
}

namespace detail {

/// The bits of a number as another type of the same size.
template <class To, class From>
P3D_HOST_DEVICE inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
#if defined(__HIPCC__)
  __builtin_memcpy(&to, &from, sizeof(to));  // the standard library's is for the host alone
#else
  std::memcpy(&to, &from, sizeof(to));
#endif
  return to;
}
P3D_HOST_DEVICE inline std::uint64_t bits_of(double x) { return bits_as<std::uint64_t>(x); }
P3D_HOST_DEVICE inline double from_bits(std::uint64_t bits) { return bits_as<double>(bits); }

inline constexpr double round_shift = 6755399441055744.0;  // 1.5 2^52: adding it rounds to an integer in the low bits
inline constexpr std::uint64_t round_shift_bits = 0x4338000000000000ULL;

}  // namespace detail

/// ln u for normal u > 0, to 2 units in the last place. It has no branches and calls, so that loops vectorise and every
/// backend rounds alike. u = 2^e m, sqrt(1/2) <= m < sqrt(2), ln m = 2 atanh(s), s = (m - 1) / (m + 1), to s^21
/// (remainder below 2^-55).
P3D_HOST_DEVICE inline double log_of(double u) {
  constexpr std::uint64_t one = 0x3ff0000000000000ULL, root_half = 0x3fe6a09e667f3bcdULL;
  std::uint64_t const shifted = detail::bits_of(u) - root_half + one;  // its exponent is that of u / m
  double const e = detail::from_bits((shifted >> 52) + detail::round_shift_bits) - (detail::round_shift + 1023.0);
  double const m = detail::from_bits(detail::bits_of(u) - (shifted & 0xfff0000000000000ULL) + one);
  double const s = (m - 1.0) / (m + 1.0);
  double const z = s * s;
  double p = 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  // ln 2 is added in two parts; the first has 33 bits.
  return e * 6.93147180369123816490e-01 + (2.0 * s + (2.0 * s * z * p + e * 1.90821492927058770002e-10));
}

/// cos(2 pi u) for 0 <= u <= 1, to 1e-15 absolute, without branches and calls as log_of: u = q / 4 + r, |r| <= 1/8, and
/// the Taylor polynomials of sin and cos to degree 15 and 16 (remainders below 1e-16).
P3D_HOST_DEVICE inline double cos_of_turns(double u) {
  double const shifted = 4.0 * u + detail::round_shift;
  std::uint64_t const q = detail::bits_of(shifted);
  double const a = 6.283185307179586 * (u - 0.25 * (shifted - detail::round_shift));
  double const z = a * a;
  double s = -1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = a + a * z * s;
  double c = 1.0 / 20922789888000.0;
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = 1.0 - (0.5 * z - z * z * c);
  double const value = (q & 1) != 0 ? s : c;
  return ((q + 1) & 2) != 0 ? -value : value;
}

/// The standard normal number `index` of a stream (Box-Muller, cosine branch). The block at counter `index` gives u1
/// from words 0, 1 and u2 from words 2, 3; z = sqrt(-2 ln u1) cos(2 pi u2).
P3D_HOST_DEVICE inline double random_normal(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  auto const r = random_block(key, stream, index);
  double const u1 = uniform_from(r.w[0], r.w[1]);
  double const u2 = uniform_from(r.w[2], r.w[3]);
  return std::sqrt(-2.0 * log_of(u1)) * cos_of_turns(u2);
}

/// An integer in [0, bound) from one 64-bit word by 128-bit multiplication (bias below bound / 2^64). bound > 0.
inline std::uint64_t random_below(RandomKey key, std::uint64_t stream, std::uint64_t index, std::uint64_t bound) {
  auto const r = random_block(key, stream, index);
  std::uint64_t const word = (static_cast<std::uint64_t>(r.w[0]) << 32) | r.w[1];
  std::uint64_t const a = word >> 32, b = word & 0xffffffffULL, c = bound >> 32, d = bound & 0xffffffffULL;
  std::uint64_t const middle = a * d + ((b * d) >> 32);
  std::uint64_t const middle2 = b * c + (middle & 0xffffffffULL);
  return a * c + (middle >> 32) + (middle2 >> 32);
}

}  // namespace p3d::base
