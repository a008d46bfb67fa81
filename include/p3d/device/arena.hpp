// SPDX-License-Identifier: Apache-2.0
#pragma once
// One allocation that is given out in pieces, so that no allocation happens in the step loop. The pieces are planned
// before: an ArenaSize takes the same pieces without memory and says how large the Arena must be.

#include <p3d/base/memory_sizes.hpp>
#include <p3d/device/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::device {

/// A bump allocator over one device allocation. Every piece starts on a multiple of 64 bytes. Pieces cannot be freed
/// one by one; all of them live as long as the arena.
class Arena {
public:
  static constexpr std::size_t alignment = base::arena_alignment;
  /// Makes an arena for `bytes` bytes. A given `memory` must have padded(bytes) + alignment bytes and outlive the
  /// arena; without it the arena allocates.
  Arena(std::size_t bytes, std::string const& label, void* memory = nullptr);

  /// Takes a vector of n elements, not initialized. Throws base::Error with the label, the bytes asked for and the
  /// bytes left.
  template <class T>
  View1<T> take(std::int64_t n) {
    return View1<T>(static_cast<T*>(take_bytes(static_cast<std::size_t>(n) * sizeof(T))), n);
  }
  /// Takes a matrix, not initialized, as take(n) takes a vector.
  template <class T>
  View2<T> take(std::int64_t rows, std::int64_t cols) {
    return View2<T>(static_cast<T*>(take_bytes(static_cast<std::size_t>(rows * cols) * sizeof(T))), rows, cols);
  }
  /// Takes bytes, not initialized, as take(n) does.
  void* take_bytes(std::size_t bytes);

  /// Bytes that the arena has, padded to the alignment.
  std::size_t capacity() const { return capacity_; }
  /// Bytes taken so far.
  std::size_t used() const { return used_; }
  /// The most bytes that were taken at a time.
  std::size_t high_water() const { return high_water_; }
  /// The bytes that a request of `bytes` takes from an arena.
  static constexpr std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

private:
  std::string label_;
  Kokkos::View<std::byte*, MemSpace> storage_;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t high_water_ = 0;
};

/// A stand-in for an arena that counts the bytes which will be taken. The count stops at `most`, more than any memory
/// holds, so that sums do not overflow.
struct ArenaSize {
  static constexpr std::size_t most = std::size_t{1} << 62;
  std::size_t bytes = 0;
  std::size_t used() const { return bytes; }
  void* take_bytes(std::size_t n) {
    bytes = std::min(most, bytes + (n < most ? Arena::padded(n) : most));
    return nullptr;
  }
  template <class T>
  View1<T> take(std::int64_t n) {
    auto const wanted = static_cast<std::size_t>(n);
    bytes = std::min(most, bytes + (wanted < most / sizeof(T) ? Arena::padded(wanted * sizeof(T)) : most));
    return {};
  }
  template <class T>
  View2<T> take(std::int64_t rows, std::int64_t cols) {
    take<T>(rows * cols);
    return {};
  }
};

}  // namespace p3d::device
