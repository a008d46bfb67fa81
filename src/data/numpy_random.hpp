// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of numpy.random.RandomState with which Megatron-LM orders its samples.

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace p3d::data {

/// The generator RandomState(seed): MT19937, seeded with one 32-bit number.
class NumpyRandom {
public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  /// Shuffles as RandomState.shuffle: Fisher-Yates from the end.
  template <class T>
  void shuffle(std::span<T> numbers) {
    for (std::size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[up_to(i)]);
  }

private:
  /// A number from 0 to `most`: bits below the next power of two are drawn until they are in range.
  std::uint64_t up_to(std::uint64_t most) {
    auto const mask = std::bit_ceil(most + 1) - 1;
    std::uint64_t value = 0;
    do {
      value = engine_();
      if (most > 0xffffffff) value = value << 32 | engine_();
      value &= mask;
    } while (value > most);
    return value;
  }

  std::mt19937 engine_;
};

}  // namespace p3d::data
