// SPDX-License-Identifier: Apache-2.0
#pragma once
// A long array that is not in the memory of kernels but in a swap file or in host memory. It moves in pieces of 2^20
// elements. A piece that was never stored is zeros. Example: an array of 2.5 million floats has 3 pieces of 4, 4 and
// about 1.5 MiB.

#include <p3d/device/swap_file.hpp>
#include <p3d/device/view.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace p3d::device {

/// One offloaded array of float, double, bfloat16 or float16. One thread uses it.
template <class T>
class OffloadedArray {
public:
  /// Elements of a piece; the last piece may be smaller.
  static constexpr std::int64_t piece = base::offloaded_piece;
  /// The bytes that an array of n elements takes in a swap file.
  static std::int64_t file_bytes(std::int64_t n);

  OffloadedArray() = default;
  /// An array of n zeros, which takes file_bytes(n) from `offset` on in the file. The file must outlive the array. With
  /// a null file the array is in host memory.
  OffloadedArray(std::int64_t n, SwapFile* file, std::int64_t offset);

  std::int64_t size() const { return size_; }
  std::int64_t num_pieces() const { return (size_ + piece - 1) / piece; }
  std::int64_t piece_size(std::int64_t p) const { return std::min(piece, size_ - p * piece); }

  /// Starts to copy piece p to `host`, which has piece_size(p) elements and must not be touched until the request is
  /// done. In host memory, and for a piece that was never stored, the copy is complete at once and the request is
  /// empty.
  SwapFile::Request start_load(std::int64_t p, T* host);
  /// Starts to copy `host` to piece p. The memory must stay valid and unchanged until the request is done.
  SwapFile::Request start_store(std::int64_t p, T const* host);

  /// Copies elements [first, first + count) to `out`, and waits for it.
  void read(std::int64_t first, std::int64_t count, T* out);
  /// Copies `in` to elements [first, first + count). The change stays in memory until another piece is needed or
  /// let_go().
  void write(std::int64_t first, std::int64_t count, T const* in);
  /// Stores and frees the one piece that read() and write() keep in memory.
  void let_go();

private:
  /// Brings piece p into in_hand_; the piece that was there is stored first if it was changed.
  void take(std::int64_t p);
  /// Stores the piece in in_hand_ if it was changed.
  void put_back();

  std::int64_t size_ = 0;
  SwapFile* file_ = nullptr;
  std::int64_t offset_ = 0;
  std::vector<bool> stored_;          ///< one for each piece: true once it was stored
  std::vector<T> host_;               ///< the whole array, where there is no file
  std::vector<T> in_hand_;            ///< the piece that read() and write() work on
  std::int64_t number_in_hand_ = -1;  ///< its number, or -1
  bool changed_ = false;              ///< in_hand_ differs from the file
};

}  // namespace p3d::device
