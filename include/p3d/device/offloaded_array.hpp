// SPDX-License-Identifier: Apache-2.0
#pragma once
// A long array that is not in the memory of kernels: in pieces, in a swap file or in host memory. A piece that was
// never stored is zeros.

#include <p3d/device/swap_file.hpp>
#include <p3d/device/view.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace p3d::device {

/// T: float, double, bfloat16 or float16. Used by one thread.
template <class T>
class OffloadedArray {
public:
  /// Elements of a piece; the last may be smaller.
  static constexpr std::int64_t piece = std::int64_t{1} << 20;
  /// What an array of n elements takes of a swap file.
  static std::int64_t file_bytes(std::int64_t n);

  OffloadedArray() = default;
  /// n elements from `offset` of the file on, which outlives the array; null: in host memory.
  OffloadedArray(std::int64_t n, SwapFile* file, std::int64_t offset);

  std::int64_t size() const { return size_; }
  std::int64_t num_pieces() const { return (size_ + piece - 1) / piece; }
  std::int64_t piece_size(std::int64_t p) const { return std::min(piece, size_ - p * piece); }

  /// Starts to bring piece p to `host`, or to take it from there: piece_size(p) elements that stay until the request is
  /// done (at once where nothing travels).
  SwapFile::Request start_load(std::int64_t p, T* host);
  SwapFile::Request start_store(std::int64_t p, T const* host);

  /// Elements [first, first + count), now.
  void read(std::int64_t first, std::int64_t count, T* out);
  void write(std::int64_t first, std::int64_t count, T const* in);
  /// Gives back the memory of the piece that read and write have in hand.
  void let_go();

private:
  /// Makes piece p the one in hand.
  void take(std::int64_t p);
  /// Stores it if it was changed.
  void put_back();

  std::int64_t size_ = 0;
  SwapFile* file_ = nullptr;
  std::int64_t offset_ = 0;
  std::vector<bool> stored_;  ///< by piece
  std::vector<T> host_;       ///< all of it, where there is no file
  std::vector<T> in_hand_;    ///< one piece, for read and write
  std::int64_t number_in_hand_ = -1;
  bool changed_ = false;
};

}  // namespace p3d::device
