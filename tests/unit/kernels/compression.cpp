// SPDX-License-Identifier: Apache-2.0
// Compressed gradients: the mean of numbers that are rounded at random, what is kept of a line, the same numbers for
// rows and columns, and numbers that are not finite.

#include "support.hpp"

#include <p3d/kernels/compression.hpp>

#include <limits>
#include <numeric>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace compression_test {

using p3d::base::Code;
using p3d::base::CodedLines;
using Bytes = Owned1<double>;  // aligned for all numbers

CodedLines lines_of(Code code, std::int64_t lines, std::int64_t length, bool columns, std::int64_t number_bytes,
                    std::int64_t kept = 0) {
  CodedLines out;
  out.code = code;
  out.lines = lines;
  out.length = length;
  out.line_stride = columns ? 1 : length;
  out.stride = columns ? lines : 1;
  out.chosen = kept;
  out.number_bytes = number_bytes;
  return out;
}

std::byte* bytes(Bytes const& buffer) { return reinterpret_cast<std::byte*>(buffer.data()); }
Bytes buffer_for(CodedLines const& lines, int workers = 1) {
  auto const n = workers * (lines.bytes_before(lines.units()) + 8) / 8;
  return Bytes("p3d::test::bytes", static_cast<std::size_t>(n + 1));
}

/// Numbers after a message to one rank, of so many random numbers' stream.
template <class G>
Vec sent(CodedLines const& lines, Vec const& x, std::uint64_t stream) {
  auto const from = vector_of<G>(x), to = vector_of<G>(Vec(x.size(), 77.0));
  auto const buffer = buffer_for(lines);
  auto const key = p3d::base::random_key(3, "test");
  kernels::encode<G>(ExecSpace(), lines, key, stream, from, {bytes(buffer), 0, lines.units()});
  kernels::decode<G>(ExecSpace(), lines, {bytes(buffer), 0, lines.units()}, View1<G>(to));
  return host(to);
}

Vec transposed(Vec const& x, std::int64_t rows, std::int64_t cols) {
  Vec out(x.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = x[static_cast<std::size_t>(r * cols + c)];
  return out;
}

TEST(Compression, MeanOfRoundedNumbersIsRight) {
  // 200,000 numbers, each of them 50 times: the error of the mean of 10^7 draws of variance up to s^2 / 4.
  constexpr std::int64_t lines = 800, length = 250;
  auto const x = random_values("mean", lines * length);
  auto const l = lines_of(Code::int8, lines, length, false, 8);
  Vec sum(x.size(), 0.0);
  double largest = 0;
  constexpr int draws = 50;
  for (int d = 0; d < draws; ++d) {
    auto const y = sent<double>(l, x, static_cast<std::uint64_t>(d));
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += y[i] - x[i];
    for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::fabs(y[i] - x[i]));
  }
  double const step = 5.0 / 127;  // the largest of 128 normal numbers is below 5
  EXPECT_LT(largest, step);
  double const mean = std::accumulate(sum.begin(), sum.end(), 0.0) / draws / static_cast<double>(x.size());
  EXPECT_LT(std::fabs(mean), 4 * step / 2 / std::sqrt(static_cast<double>(draws) * static_cast<double>(x.size())));
  // And that of each number.
  int far = 0;
  for (double s : sum) far += std::fabs(s / draws) > 4 * step / 2 / std::sqrt(static_cast<double>(draws)) ? 1 : 0;
  EXPECT_LT(far, 40);
}

template <class G>
void check_lines(double tolerance) {
  for (auto code : {Code::plain, Code::int8})
    for (std::int64_t length : {1, 3, 127, 128, 129, 300}) {
      constexpr std::int64_t lines = 5;
      auto const x = rounded<G>(random_values("lines", lines * length));
      auto const rows = lines_of(code, lines, length, false, sizeof(kernels::Acc<G>));
      auto const columns = lines_of(code, lines, length, true, sizeof(kernels::Acc<G>));
      EXPECT_EQ(rows.bytes_before(rows.units()), code == Code::plain
                                                     ? lines * length * std::int64_t{sizeof(kernels::Acc<G>)}
                                                     : lines * (4 * ((length + 127) / 128) + (length + 3) / 4 * 4));
      auto const y = sent<G>(rows, x, 1);
      expect_same(transposed(sent<G>(columns, transposed(x, lines, length), 1), length, lines), y, "columns");
      for (std::size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(y[i], x[i], code == Code::plain ? 0.0 : tolerance) << length << " " << i;
    }
}
TEST(Compression, RowsAndColumnsAreTheSameLines) {
  check_lines<double>(5.0 / 127);
  check_lines<float>(5.0 / 127);
  check_lines<bfloat16>(5.0 / 127 + 4 * 0x1p-8);
}

TEST(Compression, PartsOfUnitsAreThoseOfTheWhole) {
  auto lines = lines_of(Code::int8, 7, 300, false, 4);
  auto const x = vector_of<float>(random_values("parts", 2100));
  auto const key = p3d::base::random_key(3, "test");
  auto const whole = buffer_for(lines), parts = buffer_for(lines);
  kernels::encode<float>(ExecSpace(), lines, key, 5, x, {bytes(whole), 0, lines.units()});
  for (std::int64_t first = 0; first < lines.units(); first += 4)
    kernels::encode<float>(ExecSpace(), lines, key, 5, x,
                           {bytes(parts) + lines.bytes_before(first), first, std::min(first + 4, lines.units())});
  expect_same(host(parts), host(whole));
  // A part of the lines, as another rank holds it, has the same bytes.
  auto last = lines_of(Code::int8, 2, 300, false, 4);
  last.first_line = 5;
  auto const two = buffer_for(last);
  kernels::encode<float>(ExecSpace(), last, key, 5,
                         View1<float const>(Kokkos::subview(x, Kokkos::pair<int, int>(1500, 2100))),
                         {bytes(two), 0, last.units()});
  auto const z = sent<float>(lines, host(x), 5);
  auto const to = vector_of<float>(Vec(600, 0.0));
  kernels::decode<float>(ExecSpace(), last, {bytes(two), 0, last.units()}, View1<float>(to));
  expect_same(host(to), Vec(z.begin() + 1500, z.end()));
}

TEST(Compression, SumsAreThoseOfAllWorkers) {
  constexpr int workers = 3;
  for (auto code : {Code::plain, Code::int8}) {
    auto const lines = lines_of(code, 6, 140, false, 8);
    auto const each = (lines.bytes_before(lines.units()) + 7) / 8 * 8;
    auto const in = buffer_for(lines, workers + 1), out = buffer_for(lines);
    auto const key = p3d::base::random_key(3, "test");
    Vec sum(840, 0.0);
    for (int v = 0; v < workers; ++v) {
      auto const x = random_values("worker" + std::to_string(v), 840);
      kernels::encode<double>(ExecSpace(), lines, key, static_cast<std::uint64_t>(v), vector_of<double>(x),
                              {bytes(in) + v * each, 0, lines.units()});
      auto const y = code == Code::plain ? x : sent<double>(lines, x, static_cast<std::uint64_t>(v));
      for (std::size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
    }
    kernels::add_coded<double>(ExecSpace(), lines, key, 9, workers, {bytes(in), 0, lines.units(), each},
                               {bytes(out), 0, lines.units()});
    auto const to = vector_of<double>(Vec(840, 0.0));
    kernels::decode<double>(ExecSpace(), lines, {bytes(out), 0, lines.units()}, View1<double>(to));
    expect_same(host(to), code == Code::plain ? sum : sent<double>(lines, sum, 9));
  }
}

TEST(Compression, BlocksThatAreNotFiniteStayInTheirBlock) {
  auto const lines = lines_of(Code::int8, 1, 300, false, 4);
  for (double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto x = random_values("bad", 300);
    x[130] = bad;
    auto const y = sent<float>(lines, x, 0);
    for (std::size_t i = 0; i < 300; ++i) EXPECT_EQ(std::isfinite(y[i]), i < 128 || i >= 256) << i;
  }
  expect_same(sent<float>(lines, Vec(300, 0.0), 0), Vec(300, 0.0));
  expect_same(sent<float>(lines, Vec(300, 1e-42), 0), Vec(300, 0.0));  // a scale without all its digits
}

/// One worker's step of EF21 on lines of rows; returns what is applied.
template <class G>
Vec topk(CodedLines const& lines, Vec const& x, Owned1<G> const& share, Owned1<G> const& applied) {
  auto const gradients = vector_of<G>(x);
  auto const buffer = buffer_for(lines);
  kernels::encode_topk<G>(ExecSpace(), lines, G(1), gradients, share, {bytes(buffer), 0, lines.units()});
  kernels::add_topk<G>(ExecSpace(), lines, G(1), 1, {bytes(buffer), 0, lines.units(), 0}, applied, View1<G>(gradients));
  return host(gradients);
}

TEST(Compression, KeepsTheLargestOfALine) {
  constexpr std::int64_t length = 60;
  for (int turn = 0; turn < 1000; ++turn) {
    auto const k = 1 + turn % 7;
    bool const columns = turn % 2 == 1;
    auto const lines = lines_of(Code::topk, 3, length, columns, 8, k);
    auto x = random_values("topk" + std::to_string(turn), 3 * length);
    if (turn % 3 == 0)
      for (auto& v : x) v = std::round(v);  // many equal ones: the first ones are kept
    auto const share = vector_of<double>(Vec(x.size(), 0.0)), applied = vector_of<double>(Vec(x.size(), 0.0));
    auto const y = topk<double>(lines, x, share, applied);
    expect_same(host(share), y);
    expect_same(host(applied), y);
    double all = 0, left = 0;
    for (int l = 0; l < 3; ++l) {
      std::vector<std::size_t> order;
      for (std::int64_t e = 0; e < length; ++e)
        order.push_back(static_cast<std::size_t>(columns ? e * 3 + l : l * length + e));
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return std::fabs(x[a]) > std::fabs(x[b]); });
      for (std::size_t e = 0; e < order.size(); ++e) {
        EXPECT_EQ(y[order[e]], e < static_cast<std::size_t>(k) ? x[order[e]] : 0.0) << turn;
        all += x[order[e]] * x[order[e]];
        left += (x[order[e]] - y[order[e]]) * (x[order[e]] - y[order[e]]);
      }
    }
    EXPECT_LE(left, (1 - static_cast<double>(k) / length) * all * (1 + 1e-12));  // C is a contraction
  }
}

TEST(Compression, WhatIsLeftComesLater) {
  auto const lines = lines_of(Code::topk, 2, 10, false, 4, 1);
  auto const x = rounded<float>(random_values("later", 20));
  auto const share = vector_of<float>(Vec(20, 0.0)), applied = vector_of<float>(Vec(20, 0.0));
  Vec y;
  for (int step = 0; step < 10; ++step) y = topk<float>(lines, x, share, applied);
  expect_same(y, x);  // ten numbers of each line in ten steps
  // A line with a number that is not finite is applied as NaN, and not remembered.
  auto bad = x;
  bad[3] = std::numeric_limits<double>::infinity();
  bad[4] = 50;
  y = topk<float>(lines, bad, share, applied);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(y[i]), i < 10) << i;
  expect_same(host(share), x);
  expect_same(topk<float>(lines, x, share, applied), x);
}

}  // namespace compression_test
