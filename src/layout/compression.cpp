// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/compression.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::layout {

namespace {

using base::Code;
using config::Compress;

base::CodedLines lines_of(LocalParam const& item, config::Comm const& comm, std::int64_t number_bytes) {
  auto const cuts = [&](int dimension) { return !cutting_axes(*item.spec, dimension).empty(); };
  base::CodedLines t;
  t.offset = item.offset;
  t.number_bytes = number_bytes;
  bool const columns = cuts(1) && item.spec->rows > 1;
  P3D_REQUIRE(!columns || !cuts(0), "one dimension of a parameter is whole");
  t.lines = columns ? item.cols : item.rows;
  t.length = columns ? item.rows : item.cols;
  t.line_stride = columns ? 1 : item.cols;
  t.stride = columns ? item.cols : 1;
  t.first_line = columns ? item.col_begin : item.row_begin;
  if (item.spec->rows == 1) return t;
  t.code = comm.compress == config::Compress::int8 ? Code::int8 : Code::topk;
  if (t.code == Code::topk)
    t.chosen = std::clamp<std::int64_t>(std::llround(comm.topk * static_cast<double>(t.length)), 1, t.length);
  return t;
}

/// Places the factors of matrices, and lists what is not compressed.
void divide_low_rank(Compression& out, StageParams const& params, std::int64_t rank) {
  out.rank = rank;
  auto const& items = params.items();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].spec->trained) continue;
    if (is_low_rank(*items[i].spec, rank)) {
      out.low_rank.push_back({i, out.left_numbers, out.right_numbers});
      out.left_numbers += items[i].rows * rank;
      out.right_numbers += items[i].cols * rank;
    } else {
      out.tensors.push_back({i, {}});
      out.plain_numbers += items[i].size();
    }
  }
  out.left_numbers += out.plain_numbers;
  out.bounds.push_back(0);
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

AxisSet cutting_axes(ParamSpec const& spec, int dimension) {
  AxisSet out;
  for (auto const& split : spec.splits)
    if (split.dimension == dimension) out = out.plus(split.axis);
  return out;
}

bool is_low_rank(ParamSpec const& spec, std::int64_t rank) {
  return spec.rows > 1 && 2 * (spec.rows + spec.cols) * rank < spec.size();
}

std::int64_t Compression::longest_part() const {
  std::int64_t longest = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) longest = std::max(longest, part_bytes(p));
  return longest;
}

std::int64_t Compression::buffer_bytes() const {
  if (kind == Compress::powersgd) return (left_numbers + 2 * rank) * number_bytes;  // and products of columns
  if (kind == Compress::topk) return workers * bytes();
  return workers_of_replica() * bytes() + workers * longest_part() + bytes();
}

std::int64_t Compression::state_bytes() const {
  std::int64_t const applied = kind == Compress::topk ? 1 : 0;
  return ((applied + workers_of_replica()) * state_elements + right_numbers) * number_bytes;
}

std::int64_t Compression::traffic() const {
  std::int64_t const others = replicas - 1;
  if (kind == Compress::powersgd) return 2 * others * (left_numbers + right_numbers) * number_bytes;
  if (kind == Compress::topk) return others * workers * bytes();
  return others * (workers_of_replica() + 1) * bytes();
}

Compression make_compression(config::Config const& c, StageParams const& params, std::int64_t number_bytes) {
  P3D_REQUIRE(c.compresses(), "gradients are compressed");
  Compression out;
  out.workers = c.comm.workers;
  out.replicas = c.parallel.dp;
  out.kind = c.comm.compress;
  out.number_bytes = number_bytes;
  out.state_elements = out.kind == Compress::int8 ? 0 : params.flat_size();
  auto const& items = params.items();
  if (out.kind == Compress::powersgd) {
    divide_low_rank(out, params, c.comm.powersgd_rank);
    return out;
  }
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].spec->trained) out.tensors.push_back({i, lines_of(items[i], c.comm, number_bytes)});
  std::stable_partition(out.tensors.begin(), out.tensors.end(),
                        [](CodedTensor const& t) { return t.lines.code == Code::plain; });
  std::int64_t units = 0;
  for (auto const& t : out.tensors) units += t.lines.units();
  // Parts have equal numbers of units.
  std::int64_t const number = out.kind == Compress::topk ? 1 : out.replicas;
  out.bounds.push_back(0);
  for (std::int64_t p = 0; p < number; ++p) {
    auto const begin = units * p / number, end = units * (p + 1) / number;
    auto& pieces = out.parts.emplace_back();
    std::int64_t before = 0, bytes = 0;
    for (std::size_t i = 0; i < out.tensors.size(); ++i) {
      auto const& t = out.tensors[i].lines;
      auto const first = std::clamp<std::int64_t>(begin - before, 0, t.units()),
                 last = std::clamp<std::int64_t>(end - before, 0, t.units());
      before += t.units();
      if (first == last) continue;
      pieces.push_back({i, first, last, bytes});
      bytes += t.bytes_before(last) - t.bytes_before(first);
    }
    out.bounds.push_back(out.bounds.back() + aligned(bytes));
  }
  return out;
}

}  // namespace p3d::layout
