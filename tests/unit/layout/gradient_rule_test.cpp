// SPDX-License-Identifier: Apache-2.0
// Brute force of the gradient rule. Every rank of a small mesh works out, element by element, the gradient of the
// tokens it sees for the elements it holds. Then every possible set of axes is tried for the reduction: the sets that
// make each held element the sum over all tokens must be those that the parameter table names.

#include "tiny_models.hpp"

#include <p3d/layout/params.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace {
using namespace p3d;
using namespace p3d::layout;

constexpr int num_tokens = 12;  // divisible by dp = 1, 2, 3

// An arbitrary contribution of one token to one global element; integers, so sums are exact.
std::int64_t contribution(int token, std::int64_t element) {
  return (token + 1) * (7 * element + 3) % 1009 + token * token;
}

/// The axes of these meshes, by bit.
constexpr std::array<Axis, 3> axes{Axis::dp, Axis::tp, Axis::pp};

AxisSet axis_set(unsigned bits) {
  AxisSet out;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (bits >> i & 1u) out = out.plus({axes[i]});
  }
  return out;
}

std::vector<std::int64_t> local_values(LocalParam const& p, int first_token, int step) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(p.size()));
  for (std::int64_t r = 0; r < p.valid_rows; ++r) {
    for (std::int64_t k = 0; k < p.cols; ++k) {
      auto const element = (p.row_begin + r) * p.spec->cols + p.col_begin + k;
      auto& sum = out[static_cast<std::size_t>(r * p.cols + k)];
      for (int t = first_token; t < num_tokens; t += step) sum += contribution(t, element);
    }
  }
  return out;
}

TEST(GradientRule, AgreesWithBruteForceOnSmallMeshes) {
  int wrong_sets_seen = 0;
  std::vector<config::Config> all;
  for (bool const sequence : {false, true}) {
    for (auto const& c : test::tiny_configs()) all.emplace_back(c).parallel.sequence = sequence;
  }
  for (auto const& c : all) {
    SCOPED_TRACE(test::describe(c));
    RankGrid const grid(c.parallel, parse_order(c.parallel.order));
    auto const table = make_param_table(c);
    auto const stages = make_stage_map(c);
    std::map<std::string, std::map<int, std::vector<std::int64_t>>> gradient, wanted;  // by parameter and rank
    for (int rank = 0; rank < grid.num_ranks(); ++rank) {
      auto const at = grid.coordinates(rank);
      StageParams const params(table, stages, at.pp, grid.sizes(), at);
      for (auto const& p : params.items()) {
        // The batch is dealt over dp; the ranks of one tensor group see the same tokens. Under sequence parallelism
        // that is so where they hold parts of the parameter; else they have their own tokens.
        auto const& sizes = grid.sizes();
        // Those with the norm of one head have their own heads of all tokens, which is the same to the rule.
        bool const of_head = c.model.qk_norm == config::QkNorm::head &&
                             p.spec->name.find(".attn.") != std::string::npos && p.spec->name.ends_with("_norm.weight");
        // Those with slopes have their own columns of all tokens, likewise.
        bool const of_columns = p.spec->name.find(".mlp.alpha_") != std::string::npos;
        bool const shares = (c.parallel.sequence && p.spec->splits.empty()) || of_head || of_columns;
        gradient[p.spec->name][rank] =
            shares ? local_values(p, at.dp + sizes.dp * at.tp, sizes.dp * sizes.tp) : local_values(p, at.dp, sizes.dp);
        wanted[p.spec->name][rank] = local_values(p, 0, 1);
      }
    }
    for (auto const& s : table.specs()) {
      for (unsigned bits = 0; bits < 1u << axes.size(); ++bits) {
        auto const set = axis_set(bits);
        bool right = true;
        for (auto const& [rank, mine] : gradient[s.name]) {
          std::vector<std::int64_t> sum(mine.size());
          for (auto const& [other, theirs] : gradient[s.name]) {
            auto const a = grid.coordinates(rank), b = grid.coordinates(other);
            bool together = true;
            for (auto axis : axes) together = together && (a[axis] == b[axis] || set.has(axis));
            if (!together) continue;
            ASSERT_TRUE(s.tied || sum.size() == theirs.size()) << "an untied parameter lives on one stage";
            for (std::size_t i = 0; i < std::min(sum.size(), theirs.size()); ++i) sum[i] += theirs[i];
          }
          right = right && sum == wanted[s.name][rank];
        }
        // An axis with one rank makes no difference; nor does pp, unless the parameter lives on several stages.
        auto const rule = s.gradient_axes();
        std::set<int> stages_of_it;
        for (auto const& [rank, mine] : gradient[s.name]) stages_of_it.insert(grid.coordinates(rank).pp);
        bool named = true;
        for (auto axis : axes) {
          bool const matters = axis == Axis::pp ? stages_of_it.size() > 1 : grid.sizes()[axis] > 1;
          named = named && (!matters || set.has(axis) == rule.has(axis));
        }
        EXPECT_EQ(right, named) << s.name << " reduced over" << (set.has(Axis::dp) ? " dp" : "")
                                << (set.has(Axis::tp) ? " tp" : "") << (set.has(Axis::pp) ? " pp" : "");
        wrong_sets_seen += !right;
      }
    }
  }
  EXPECT_GT(wrong_sets_seen, 0);
}

// The rule for every set of axes that could split the tokens, and both ways to hold a parameter: 8 x 2 cases. The mesh
// has 2 ranks along each axis. A parameter that is split lives in halves along tp.
TEST(GradientRule, AgreesWithBruteForceForEverySetOfTokenAxes) {
  RankGrid const grid({.tp = 2, .pp = 2, .dp = 2}, parse_order("tp-pp-dp"));
  constexpr std::int64_t elements = 4;
  for (unsigned tokens = 0; tokens < 8; ++tokens)
    for (bool const split : {false, true}) {
      ParamSpec spec;
      spec.cols = elements;
      if (split) spec.splits = {{1, Axis::tp}};
      spec.token_axes = axis_set(tokens);
      // A rank sees the tokens whose number agrees with its coordinates along the axes that split them. Along tp, ranks
      // that hold different halves must see the same tokens: otherwise no sum over ranks makes a gradient.
      bool const impossible = split && spec.token_axes.has(Axis::tp);
      auto const gradient = [&](int rank, bool all) {
        auto const at = grid.coordinates(rank);
        std::vector<std::int64_t> out(split ? elements / 2 : elements);
        for (int t = 0; t < 8; ++t) {
          bool sees = true;
          for (std::size_t i = 0; i < axes.size(); ++i)
            if (spec.token_axes.has(axes[i]) && (t >> i & 1) != at[axes[i]]) sees = false;
          if (!sees && !all) continue;
          for (std::size_t i = 0; i < out.size(); ++i)
            out[i] += contribution(t, static_cast<std::int64_t>(i) + (split ? at.tp * elements / 2 : 0));
        }
        return out;
      };
      int right_sets = 0;
      for (unsigned bits = 0; bits < 8; ++bits) {
        auto const set = axis_set(bits);
        bool right = true;
        for (int rank = 0; rank < grid.num_ranks(); ++rank) {
          std::vector<std::int64_t> sum(split ? elements / 2 : elements);
          for (int other = 0; other < grid.num_ranks(); ++other) {
            auto const a = grid.coordinates(rank), b = grid.coordinates(other);
            bool together = true;
            for (auto axis : axes) together = together && (a[axis] == b[axis] || set.has(axis));
            auto const theirs = gradient(other, false);
            for (std::size_t i = 0; together && i < sum.size(); ++i) sum[i] += theirs[i];
          }
          right = right && sum == gradient(rank, true);
        }
        EXPECT_EQ(right, !impossible && set == spec.gradient_axes())
            << "tokens split over set " << tokens << ", parameter " << (split ? "split" : "replicated")
            << ", reduced over set " << bits;
        right_sets += right;
      }
      EXPECT_EQ(right_sets, impossible ? 0 : 1);
    }
}

}  // namespace
