// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/checkpoint_tools.hpp>

#include "checksum.hpp"
#include "posix_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace p3d::io {

namespace {

/// Elements that are read at once.
constexpr std::int64_t piece = 1 << 18;

/// Element i of a buffer, as double.
double element(std::vector<char> const& buffer, std::int64_t i, Element type) {
  if (type == Element::float32) {
    float v;
    std::memcpy(&v, buffer.data() + i * 4, 4);
    return v;
  }
  double v;
  std::memcpy(&v, buffer.data() + i * 8, 8);
  return v;
}

/// Reads an array piece by piece into `buffer` and calls visit(first element, count) for each piece.
template <class Visit>
void for_pieces(PosixFile const& file, CheckpointArray const& array, Element type, std::vector<char>& buffer,
                Visit&& visit) {
  auto const bytes = size_of(type);
  buffer.resize(static_cast<std::size_t>(std::min(piece, array.size())) * bytes);
  for (std::int64_t i = 0; i < array.size(); i += piece) {
    auto const n = std::min(piece, array.size() - i);
    file.read(array.offset + i * static_cast<std::int64_t>(bytes), buffer.data(), static_cast<std::size_t>(n) * bytes);
    visit(i, n);
  }
}

}  // namespace

ArrayScan scan(Checkpoint const& checkpoint, CheckpointArray const& array) {
  ArrayScan out;
  out.name = array.name;
  auto const type = checkpoint.header.element;
  PosixFile const file(checkpoint.path, PosixFile::Mode::read);
  std::vector<char> buffer;
  double squares = 0.0;
  out.smallest = std::numeric_limits<double>::infinity();
  out.largest = -out.smallest;
  for_pieces(file, array, type, buffer, [&](std::int64_t first, std::int64_t count) {
    out.checksum += checksum(buffer.data(), count, static_cast<std::uint64_t>(first), size_of(type));
    for (std::int64_t i = 0; i < count; ++i) {
      double const v = element(buffer, i, type);
      squares += v * v;
      out.smallest = std::min(out.smallest, v);
      out.largest = std::max(out.largest, v);
    }
  });
  out.good = out.checksum == array.checksum;
  out.norm = std::sqrt(squares);
  return out;
}

std::vector<ArrayDifference> difference(Checkpoint const& a, Checkpoint const& b) {
  std::vector<ArrayDifference> out;
  PosixFile const file_a(a.path, PosixFile::Mode::read), file_b(b.path, PosixFile::Mode::read);
  std::vector<char> buffer_a, buffer_b;
  for (auto const& array : a.arrays) {
    ArrayDifference d;
    d.name = array.name;
    auto const* other = b.find(array.name);
    if (!other || other->rows != array.rows || other->cols != array.cols) {
      d.only_in = a.path;
      out.push_back(std::move(d));
      continue;
    }
    std::uint64_t sum_a = 0, sum_b = 0;
    for_pieces(file_a, array, a.header.element, buffer_a, [&](std::int64_t first, std::int64_t count) {
      auto const bytes = size_of(b.header.element);
      buffer_b.resize(static_cast<std::size_t>(count) * bytes);
      file_b.read(other->offset + first * static_cast<std::int64_t>(bytes), buffer_b.data(), buffer_b.size());
      sum_a += checksum(buffer_a.data(), count, static_cast<std::uint64_t>(first), size_of(a.header.element));
      sum_b += checksum(buffer_b.data(), count, static_cast<std::uint64_t>(first), bytes);
      for (std::int64_t i = 0; i < count; ++i) {
        double const x = element(buffer_a, i, a.header.element), y = element(buffer_b, i, b.header.element);
        if (std::memcmp(&x, &y, sizeof x) == 0) continue;
        double const gap = std::isnan(x - y) ? std::numeric_limits<double>::infinity() : std::fabs(x - y);
        if (d.differing++ == 0 || gap > d.largest) {
          d.largest = gap;
          d.row = (first + i) / array.cols;
          d.col = (first + i) % array.cols;
          d.a = x;
          d.b = y;
        }
      }
    });
    if (sum_a != array.checksum) d.damaged_in.push_back(a.path);
    if (sum_b != other->checksum) d.damaged_in.push_back(b.path);
    out.push_back(std::move(d));
  }
  for (auto const& array : b.arrays) {
    auto const* other = a.find(array.name);
    if (other && other->rows == array.rows && other->cols == array.cols) continue;
    ArrayDifference d;
    d.name = array.name;
    d.only_in = b.path;
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace p3d::io
