// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the numbers of a parameter's gradient lie in memory and, compressed, in a message. Sizes, kernels and messages
// have it in common; layout/compression.hpp says what it is for. A unit is what is compressed by itself, from its own
// numbers alone:
//   int8   a block of 128 numbers of a line: a scale in fp32, then a byte a number, filled up to 4 bytes
//   topk   a whole line: the k numbers that are chosen, then their places in the line, 4 bytes each
//   plain  a block of 128 numbers as they are

#include <p3d/base/host_device.hpp>

#include <cstdint>

namespace p3d::base {

/// Numbers of a line that share a scale.
inline constexpr std::int64_t compression_block = 128;

/// The form of a unit.
enum class Code { plain, int8, topk };

/// The lines of a parameter. Element e of line l lies at offset + l * line_stride + e * stride of the flat buffer.
struct CodedLines {
  Code code = Code::plain;
  std::int64_t offset = 0;
  std::int64_t lines = 0, length = 0, line_stride = 0, stride = 1;
  std::int64_t first_line = 0;    ///< number of the first line among those of the whole parameter
  std::int64_t chosen = 0;        ///< numbers of a line that travel, with Code::topk
  std::int64_t number_bytes = 4;  ///< bytes of a number that is not rounded

  P3D_HOST_DEVICE std::int64_t blocks() const {
    return code == Code::topk ? 1 : (length + compression_block - 1) / compression_block;
  }
  P3D_HOST_DEVICE std::int64_t units() const { return lines * blocks(); }
  /// Bytes of a unit of n numbers.
  P3D_HOST_DEVICE std::int64_t unit_bytes(std::int64_t n) const {
    if (code == Code::int8) return 4 + (n + 3) / 4 * 4;
    if (code == Code::plain) return n * number_bytes;
    return (chosen * (number_bytes + 4) + number_bytes - 1) / number_bytes * number_bytes;
  }
  /// Units are ordered by their block, then by line, so that neighbouring threads read neighbouring columns.
  P3D_HOST_DEVICE std::int64_t line_of(std::int64_t unit) const { return unit % lines; }
  P3D_HOST_DEVICE std::int64_t begin_of(std::int64_t unit) const { return unit / lines * compression_block; }
  P3D_HOST_DEVICE std::int64_t size_of(std::int64_t unit) const {
    if (code == Code::topk) return length;
    auto const rest = length - begin_of(unit);
    return rest < compression_block ? rest : compression_block;
  }
  /// Bytes of all units before this one; of all where it is units().
  P3D_HOST_DEVICE std::int64_t bytes_before(std::int64_t unit) const {
    auto const full = lines * (blocks() - 1), whole = unit < full ? unit : full;
    return whole * unit_bytes(compression_block) +
           (unit - whole) * unit_bytes(length - (blocks() - 1) * compression_block);
  }
};

}  // namespace p3d::base
