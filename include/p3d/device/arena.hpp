// SPDX-License-Identifier: Apache-2.0
#pragma once
// One allocation, handed out in pieces: no allocation happens in the step loop.

#include <p3d/device/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::device {

/// Bump allocator over one device allocation. Every piece starts on a multiple of 64 bytes. Pieces are not freed one by
/// one; nothing is given back.
class Arena {
public:
  static constexpr std::size_t alignment = 64;
  /// `memory`, where given, is room for padded(bytes) + alignment that outlives the arena; else the arena allocates.
  Arena(std::size_t bytes, std::string const& label, void* memory = nullptr);

  /// Throws base::Error with the label, what was asked for and what is left.
  template <class T>
  View1<T> take(std::int64_t n) {
    return View1<T>(static_cast<T*>(take_bytes(static_cast<std::size_t>(n) * sizeof(T))), n);
  }
  template <class T>
  View2<T> take(std::int64_t rows, std::int64_t cols) {
    return View2<T>(static_cast<T*>(take_bytes(static_cast<std::size_t>(rows * cols) * sizeof(T))), rows, cols);
  }
  void* take_bytes(std::size_t bytes);

  std::size_t capacity() const { return capacity_; }
  std::size_t used() const { return used_; }
  std::size_t high_water() const { return high_water_; }
  /// What a request of `bytes` costs in an arena.
  static constexpr std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

private:
  std::string label_;
  Kokkos::View<std::byte*, MemSpace> storage_;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t high_water_ = 0;
};

/// Stands in for an arena to learn how much will be taken. What no memory holds is `most`: sums do not overflow.
struct ArenaSize {
  static constexpr std::size_t most = std::size_t{1} << 62;
  std::size_t bytes = 0;
  std::size_t used() const { return bytes; }
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
