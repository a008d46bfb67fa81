// SPDX-License-Identifier: Apache-2.0
// Parameters divided over several axes, against brute force: every element of the tensor, every rank, every set of axes
// for the reduction of its gradient.

#include <p3d/layout/params.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace {
using namespace p3d;
using namespace p3d::layout;

constexpr std::int64_t rows = 8, cols = 12;
constexpr int tokens_seen = 16;

std::int64_t gradient_of(int token, std::int64_t element) { return (token + 1) * (7 * element + 3) % 1009; }

struct Case {
  char const* text;
  PerAxis sizes;
  std::vector<Split> splits;
  AxisSet tokens;
};

std::vector<Case> cases() {
  PerAxis const experts{.tp = 2, .pp = 2, .dp = 4, .etp = 2, .ep = 2};
  PerAxis const dense{.tp = 2, .cp = 2, .pp = 1, .dp = 4};
  return {
      {"rows over ep, then etp", experts, {{0, Axis::ep}, {0, Axis::etp}}, {Axis::edp}},
      {"rows over etp, then ep", experts, {{0, Axis::etp}, {0, Axis::ep}}, {Axis::edp}},
      {"rows over ep, columns over etp", experts, {{0, Axis::ep}, {1, Axis::etp}}, {Axis::edp}},
      {"rows over ep that holds tp", {.tp = 4, .dp = 4, .ep = 8}, {{0, Axis::ep}}, {Axis::edp}},
      {"rows over dp, columns over tp", dense, {{0, Axis::dp}, {1, Axis::tp}}, {Axis::cp}},
      {"columns over tp, cp and dp", {.tp = 3, .cp = 2, .dp = 2}, {{1, Axis::tp}, {1, Axis::cp}, {1, Axis::dp}}, {}},
      {"replicated", dense, {}, {Axis::cp, Axis::dp}}};
}

class Splits : public testing::TestWithParam<Case> {
protected:
  Splits() : grid_(GetParam().sizes, dense_axes.list()), table_({spec()}), stages_(stages()) {}
  ParamSpec spec() const {
    ParamSpec s;
    s.name = "made.up";
    s.rows = rows;
    s.cols = cols;
    s.splits = GetParam().splits;
    s.token_axes = GetParam().tokens;
    return s;
  }
  StageMap stages() const {
    return StageMap(std::vector<int>(static_cast<std::size_t>(grid_.sizes().pp), 1), grid_.sizes().pp);
  }
  LocalParam local(int rank) const {
    return StageParams(table_, stages_, 0, grid_.sizes(), grid_.coordinates(rank)).items().front();
  }
  /// The ranks that hold it: those of stage 0.
  std::vector<int> holders() const { return grid_.group(stage_axes, 0); }

  RankGrid grid_;
  ParamTable table_;
  StageMap stages_;
};

TEST_P(Splits, PiecesTileTheTensorOnceForEachReplica) {
  auto const& s = table_.specs().front();
  std::vector<int> held(static_cast<std::size_t>(rows * cols));
  for (int rank : holders()) {
    auto const p = local(rank);
    for (std::int64_t r = 0; r < p.rows; ++r)
      for (std::int64_t c = 0; c < p.cols; ++c)
        ++held.at(static_cast<std::size_t>((p.row_begin + r) * cols + p.col_begin + c));
    // Replicas hold the same piece.
    for (int other : grid_.group(s.replica_axes(), rank)) {
      EXPECT_EQ(local(other).row_begin, p.row_begin);
      EXPECT_EQ(local(other).col_begin, p.col_begin);
    }
  }
  for (int n : held) EXPECT_EQ(n, grid_.group_size(s.replica_axes()));
}

TEST_P(Splits, TheFirstAxisOfADimensionIsTheOutermost) {
  for (int rank : holders()) {
    auto const here = grid_.coordinates(rank);
    auto const p = local(rank);
    std::int64_t begin[2]{0, 0}, size[2]{rows, cols};
    for (auto const& split : GetParam().splits) {  // the piece of the piece of ...
      size[split.dimension] /= grid_.sizes()[split.axis];
      begin[split.dimension] += here[split.axis] * size[split.dimension];
    }
    EXPECT_EQ(p.row_begin, begin[0]);
    EXPECT_EQ(p.col_begin, begin[1]);
    EXPECT_EQ(p.rows, size[0]);
    EXPECT_EQ(p.cols, size[1]);
  }
}

TEST_P(Splits, TheGradientRuleAgreesWithBruteForce) {
  auto const& s = table_.specs().front();
  auto const axes = s.mesh_axes().list();
  auto const ranks = holders();
  auto const gradient = [&](int rank, bool all) {
    auto const p = local(rank);
    std::vector<std::int64_t> out;
    for (std::int64_t r = 0; r < p.rows; ++r)
      for (std::int64_t c = 0; c < p.cols; ++c) {
        auto& sum = out.emplace_back(0);
        for (int t = 0; t < tokens_seen; ++t) {
          // Token t belongs to the rank whose place along the axes that split the tokens is t modulo their number.
          bool const sees = t % grid_.sizes().product(s.token_axes) == grid_.place(s.token_axes, rank);
          if (sees || all) sum += gradient_of(t, (p.row_begin + r) * cols + p.col_begin + c);
        }
      }
    return out;
  };
  int right_sets = 0;
  for (unsigned bits = 0; bits < 1u << axes.size(); ++bits) {
    AxisSet set;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (bits >> i & 1u) set = set.plus(axes[i]);
    }
    bool right = true, same = true;
    for (int rank : ranks) {
      auto const wanted = gradient(rank, true);
      std::vector<std::int64_t> sum(wanted.size());
      for (int other : grid_.group(set, rank)) {
        auto const theirs = gradient(other, false);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
      }
      right = right && sum == wanted;
    }
    for (auto a : axes) same = same && (grid_.sizes()[a] == 1 || set.has(a) == s.gradient_axes().has(a));
    EXPECT_EQ(right, same) << "reduced over " << config::names(set, " ");
    right_sets += right && same;
  }
  EXPECT_GE(right_sets, 1);
}

INSTANTIATE_TEST_SUITE_P(Made, Splits, testing::ValuesIn(cases()));

}  // namespace
