// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checksum of a checkpoint's arrays and of its seal (checkpoint.hpp says how it is made).

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace p3d::io {

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;

/// The finaliser of splitmix64: a bijection that mixes all bits.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// The part of the checksum that `count` elements of an unsigned type add; the first of them has index `index`.
template <class Bits>
std::uint64_t checksum_of(void const* data, std::int64_t count, std::uint64_t index) {
  auto const* bytes = static_cast<unsigned char const*>(data);
  std::uint64_t weight = (index + 1) * golden;
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i, weight += golden) {
    Bits bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof(Bits));
    sum += mix(weight ^ bits);
  }
  return sum;
}

/// The part of the checksum that `count` elements of 4 or 8 bytes add.
inline std::uint64_t checksum(void const* data, std::int64_t count, std::uint64_t index, std::size_t element_bytes) {
  return element_bytes == 4 ? checksum_of<std::uint32_t>(data, count, index)
                            : checksum_of<std::uint64_t>(data, count, index);
}

/// The hash of a text of any length: the checksum of its 8-byte words (the last one filled with zeros) and of its
/// length.
class ByteHash {
public:
  void add(void const* data, std::size_t bytes) {
    auto const* p = static_cast<unsigned char const*>(data);
    for (std::size_t i = 0; i < bytes; ++i) {
      word_ |= static_cast<std::uint64_t>(p[i]) << (8 * (length_ % 8));
      if (++length_ % 8 == 0) flush();
    }
  }
  std::uint64_t value() const {
    auto copy = *this;
    copy.flush();
    return copy.sum_ + mix(copy.length_ * golden);
  }

private:
  void flush() {
    sum_ += mix((++words_ * golden) ^ word_);
    word_ = 0;
  }
  std::uint64_t word_ = 0, sum_ = 0, words_ = 0, length_ = 0;
};

}  // namespace p3d::io
