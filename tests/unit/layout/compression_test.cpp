// SPDX-License-Identifier: Apache-2.0
// What travels of compressed gradients: every number once, in bytes that are counted by hand, and the same lines on
// every layout.

#include "tiny_models.hpp"

#include <p3d/layout/compression.hpp>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace {
using namespace p3d;
using namespace p3d::layout;
using base::Code;

/// A Llama of two layers, of 4 workers.
config::Config config_of(config::Compress kind, PerAxis mesh, double topk = 0.01) {
  auto c = test::tiny_llama(mesh);
  c.model.hidden = 48;
  c.model.heads = c.model.kv_heads = 4;
  c.model.ffn = 160;
  c.model.layers = 2;
  c.model.vocab_size = 300;
  c.comm.compress = kind;
  c.comm.workers = 4;
  c.comm.topk = topk;
  return c;
}
using config::Compress;

TEST(Compression, EveryUnitTravelsOnce) {
  for (auto const kind : {Compress::int8, Compress::topk})
    for (int dp : {1, 2, 4}) {
      auto const c = config_of(kind, {.dp = dp});
      auto const table = make_param_table(c);
      auto const stages = make_stage_map(c, {0});
      StageParams const params(table, stages, 0, c.parallel, PerAxis::all(0));
      auto const plan = make_compression(c, params, 4);
      EXPECT_EQ(plan.parts.size(), kind == Compress::int8 ? static_cast<std::size_t>(dp) : 1u);
      std::map<std::size_t, std::int64_t> next;
      for (std::size_t p = 0; p < plan.parts.size(); ++p) {
        std::int64_t at = 0;
        for (auto const& piece : plan.parts[p]) {
          auto const& lines = plan.tensors[piece.tensor].lines;
          EXPECT_EQ(piece.first, next[piece.tensor]);
          EXPECT_EQ(piece.at, at);
          next[piece.tensor] = piece.last;
          at += lines.bytes_before(piece.last) - lines.bytes_before(piece.first);
        }
        EXPECT_EQ(plan.part_bytes(p), (at + 7) / 8 * 8);
        EXPECT_EQ(plan.bounds[p] % 8, 0);
      }
      ASSERT_EQ(plan.tensors.size(), params.items().size());
      for (std::size_t i = 0; i < plan.tensors.size(); ++i) EXPECT_EQ(next[i], plan.tensors[i].lines.units());
    }
}

TEST(Compression, BytesByHand) {
  auto const c = config_of(Compress::int8, {});
  auto const table = make_param_table(c);
  auto const stages = make_stage_map(c, {0});
  StageParams const params(table, stages, 0, c.parallel, PerAxis::all(0));
  auto const plan = make_compression(c, params, 4);
  // Lines of 48 numbers: 4 + 48 bytes. attn.out and mlp.down have lines of 48 too, which are columns: 48 and 160 of
  // them. Five norms are plain.
  std::int64_t const lines = 2 * 300 + 2 * (3 * 48 + 48 + 2 * 160 + 160);
  EXPECT_EQ(plan.bytes(), lines * 52 + 5 * 48 * 4);
  EXPECT_EQ(plan.traffic(), 0);
  EXPECT_EQ(plan.buffer_bytes(), (4 + 4 + 1) * plan.bytes());
  auto const two = config_of(Compress::int8, {.dp = 2});
  StageParams const of_two(table, stages, 0, two.parallel, PerAxis::all(0));
  auto const halves = make_compression(two, of_two, 4);
  EXPECT_EQ(halves.traffic(), (2 + 1) * halves.bytes());
  auto const few = config_of(Compress::topk, {.dp = 2}, 0.1);
  auto const kept = make_compression(few, of_two, 4);
  EXPECT_EQ(kept.bytes(), lines * 5 * 8 + 5 * 48 * 4);
  EXPECT_EQ(kept.traffic(), 4 * kept.bytes());
  EXPECT_EQ(kept.state_bytes(), (1 + 2) * of_two.flat_size() * 4);
}

TEST(Compression, FactorsAreThinOrNone) {
  auto c = config_of(Compress::powersgd, {.dp = 2});
  c.comm.powersgd_rank = 8;
  auto const table = make_param_table(c);
  auto const stages = make_stage_map(c, {0});
  StageParams const params(table, stages, 0, c.parallel, PerAxis::all(0));
  auto const plan = make_compression(c, params, 4);
  // 300 x 48 and 160 x 48 have factors of 348 and 208 columns of 8 numbers, less than half. 48 x 48 would have 768 of
  // 2,304: less than half too. Five norms are plain.
  EXPECT_EQ(plan.plain_numbers, 5 * 48);
  std::int64_t const left = 2 * 300 + 2 * (4 * 48 + 2 * 160 + 48), right = 2 * 48 + 2 * (4 * 48 + 2 * 48 + 160);
  EXPECT_EQ(plan.left_numbers, 8 * left + 5 * 48);
  EXPECT_EQ(plan.right_numbers, 8 * right);
  EXPECT_EQ(plan.traffic(), 2 * 4 * (plan.left_numbers + plan.right_numbers));
  EXPECT_EQ(plan.state_bytes(), 4 * (2 * params.flat_size() + plan.right_numbers));
  EXPECT_EQ(plan.buffer_bytes(), 4 * (plan.left_numbers + 2 * 8));
  c.comm.powersgd_rank = 12;  // 48 x 48: 2 x 96 x 12 is all of it
  auto const fewer = make_compression(c, params, 4);
  EXPECT_EQ(fewer.low_rank.size(), plan.low_rank.size() - 2 * 4);
  EXPECT_EQ(fewer.plain_numbers, 5 * 48 + 2 * 4 * 48 * 48);
}

TEST(Compression, LinesAreWholeOnEveryLayout) {
  for (int variant : {0, 1, 2}) {
    auto c = config_of(Compress::int8, {.tp = variant == 0 ? 4 : 2});
    c.parallel.sequence = variant == 1;
    if (variant == 2) c.parallel.embedding = config::Embedding::replicated;
    auto const table = make_param_table(c);
    auto const stages = make_stage_map(c, {0});
    std::map<std::string, std::int64_t> covered;
    for (int tp = 0; tp < c.parallel.tp; ++tp) {
      StageParams const params(table, stages, 0, c.parallel, PerAxis::only(Axis::tp, tp));
      for (auto const& t : make_compression(c, params, 4).tensors) {
        auto const& item = params.items()[t.item];
        auto const& l = t.lines;
        bool const columns = l.stride > 1 || (l.line_stride == 1 && item.cols > 1 && l.length == item.rows);
        EXPECT_EQ(l.length, columns ? item.spec->rows : item.rows > 1 ? item.spec->cols : item.cols) << item.spec->name;
        EXPECT_EQ(l.first_line, columns ? item.col_begin : item.row_begin);
        if (item.spec->split_axes().has(Axis::tp)) covered[item.spec->name] += l.lines * l.length;
      }
    }
    for (auto const& [name, numbers] : covered) EXPECT_EQ(numbers, table.find(name).size()) << name;
  }
}

}  // namespace
