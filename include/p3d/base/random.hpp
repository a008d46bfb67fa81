#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011) from Random123. A number is a pure function of (seed, purpose, stream, index), so every layout draws the same
// ones: weights are indexed by the global element of their parameter, dropout by the global sample and the element in it,
// data by step and global sample.
//
// Callable on host and device; there is no state.

#include <Random123/philox.h>

#include <cmath>
#include <cstdint>
#include <string_view>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define P3D_HOST_DEVICE __host__ __device__
#else
#define P3D_HOST_DEVICE
#endif

namespace p3d::base {

/// The 64-bit Philox key of one purpose.
struct RandomKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

/// Four 32-bit words.
struct RandomWords {
  std::uint32_t w[4];
};

/// Key of (seed, purpose): FNV-1a (64 bit) of the purpose's bytes, xor the seed, mixed by the splitmix64 finaliser.
/// k0 is the low half, k1 the high half.
constexpr RandomKey random_key(std::uint64_t seed, std::string_view purpose) {
  std::uint64_t h = 14695981039346656037ULL;
  for (char c : purpose) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  std::uint64_t z = (h ^ seed) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z = z ^ (z >> 31);
  return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32)};
}

/// The block at counter (block low, block high, stream low, stream high).
P3D_HOST_DEVICE inline RandomWords random_block(RandomKey key, std::uint64_t stream, std::uint64_t block) {
  r123::Philox4x32::ctr_type counter = {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                         static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
  r123::Philox4x32::key_type k = {{key.k0, key.k1}};
  auto const r = philox4x32(counter, k);
  return {{r.v[0], r.v[1], r.v[2], r.v[3]}};
}

/// Word number `index` of a stream: block index / 4, word index % 4.
P3D_HOST_DEVICE inline std::uint32_t random_word(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  return random_block(key, stream, index / 4).w[index % 4];
}

/// A 53-bit uniform number in (0, 1] from two words (first word is the high half): (bits + 1/2) 2^-53, at least 2^-54; only the
/// very last one rounds up to 1.
P3D_HOST_DEVICE inline double uniform_from(std::uint32_t high, std::uint32_t low) {
  std::uint64_t const bits = ((static_cast<std::uint64_t>(high) << 32) | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 1.1102230246251565e-16;  // 2^-53
}

/// Standard normal number number `index` of a stream (Box-Muller, cosine branch): the block at counter `index` gives
/// u1 from words 0, 1 and u2 from words 2, 3; z = sqrt(-2 ln u1) cos(2 pi u2).
P3D_HOST_DEVICE inline double random_normal(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  auto const r = random_block(key, stream, index);
  double const u1 = uniform_from(r.w[0], r.w[1]);
  double const u2 = uniform_from(r.w[2], r.w[3]);
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(6.283185307179586 * u2);
}

/// An integer in [0, bound) from a 64-bit word by 128-bit multiplication (bias below bound / 2^64). bound > 0.
inline std::uint64_t random_below(RandomKey key, std::uint64_t stream, std::uint64_t index, std::uint64_t bound) {
  auto const r = random_block(key, stream, index);
  std::uint64_t const word = (static_cast<std::uint64_t>(r.w[0]) << 32) | r.w[1];
  std::uint64_t const a = word >> 32, b = word & 0xffffffffULL, c = bound >> 32, d = bound & 0xffffffffULL;
  std::uint64_t const middle = a * d + ((b * d) >> 32);
  std::uint64_t const middle2 = b * c + (middle & 0xffffffffULL);
  return a * c + (middle >> 32) + (middle2 >> 32);
}

}  // namespace p3d::base
