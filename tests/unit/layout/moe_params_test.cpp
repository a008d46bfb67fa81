// SPDX-License-Identifier: Apache-2.0
// The parameters of models with experts, against brute force over all ranks of small meshes.

#include "tiny_models.hpp"

#include <p3d/layout/params.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace {
using namespace p3d;
using namespace p3d::layout;

std::vector<std::string> names_of_layer(config::Config const& c, int layer) {
  std::vector<std::string> out;
  auto const table = make_param_table(c);
  auto const prefix = "layers." + std::to_string(layer) + ".";
  for (auto row : table.rows_of_layer(layer)) {
    auto const& name = table.specs()[row].name;
    EXPECT_TRUE(name.starts_with(prefix)) << name;
    if (name.find(".attn.") == std::string::npos && name.find("norm") == std::string::npos)
      out.push_back(name.substr(prefix.size()));
  }
  return out;
}

TEST(MoeTable, NamesInOrder) {
  using Names = std::vector<std::string>;
  auto c = p3d::test::tiny_moe();
  EXPECT_EQ(names_of_layer(c, 0), (Names{"mlp.gate.weight", "mlp.up.weight", "mlp.down.weight"}))
      << "the first is dense";
  EXPECT_EQ(names_of_layer(c, 1), (Names{"moe.router.weight", "moe.router.bias", "moe.experts.gate.weight",
                                         "moe.experts.up.weight", "moe.experts.down.weight", "moe.shared.gate.weight",
                                         "moe.shared.up.weight", "moe.shared.down.weight", "moe.shared_gate.weight"}));
  EXPECT_EQ(names_of_layer(c, 2), names_of_layer(c, 1));
  auto const biased = names_of_layer(p3d::test::tiny_moe({}, true), 1);
  EXPECT_EQ(biased.size(), names_of_layer(c, 1).size() + 4);
  EXPECT_EQ(Names(biased.begin() + 5, biased.begin() + 9),
            (Names{"moe.router.linear_bias", "moe.experts.gate.bias", "moe.experts.up.bias", "moe.experts.down.bias"}));
  c.model.moe.choice_bias = false, c.model.moe.shared_ffn = 0, c.model.moe.shared_gate = false;
  c.model.bias = true, c.model.activation = config::Activation::gelu;
  EXPECT_EQ(names_of_layer(c, 1), (Names{"moe.router.weight", "moe.experts.up.weight", "moe.experts.down.weight"}))
      << "gelu has no gate, experts no biases";
  c.model.moe.every = 2, c.model.moe.first_dense = 0;
  EXPECT_EQ(names_of_layer(c, 1).size(), 3u);
  EXPECT_EQ(names_of_layer(c, 2), (Names{"mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"}));
}

TEST(MoeTable, ShapesAndInitialValues) {
  auto const table = make_param_table(p3d::test::tiny_moe());
  auto const shape = [&](char const* name) {
    auto const& s = table.find(std::string("layers.1.moe.") + name);
    return std::pair(s.rows, s.cols);
  };
  EXPECT_EQ(shape("router.weight"), std::pair(std::int64_t{4}, std::int64_t{12}));
  EXPECT_EQ(shape("router.bias"), std::pair(std::int64_t{1}, std::int64_t{4}));
  for (auto const* name : {"experts.gate.weight", "experts.up.weight", "experts.down.weight"})
    EXPECT_EQ(shape(name), std::pair(std::int64_t{4 * 12}, std::int64_t{6}));
  EXPECT_EQ(shape("shared.up.weight"), std::pair(std::int64_t{18}, std::int64_t{12}));
  EXPECT_EQ(shape("shared.down.weight"), std::pair(std::int64_t{12}, std::int64_t{18}));
  EXPECT_EQ(shape("shared_gate.weight"), std::pair(std::int64_t{1}, std::int64_t{12}));
  for (auto const& s : table.specs()) {
    bool const selects = s.name.ends_with("router.bias");
    EXPECT_EQ(s.trained, !selects) << s.name;
    EXPECT_EQ(s.decay, s.init == Init::normal) << s.name;
    EXPECT_EQ(s.init == Init::zeros, selects) << s.name;
    if (s.init != Init::normal) continue;
    bool const residual = s.name.find("down") != std::string::npos || s.name.find("attn.out") != std::string::npos;
    EXPECT_DOUBLE_EQ(s.std, residual ? 0.02 / std::sqrt(6.0) : 0.02) << s.name;
    EXPECT_EQ(s.follows_previous, s.name.ends_with("attn.k.weight") || s.name.ends_with("attn.v.weight") ||
                                      s.name.ends_with("mlp.up.weight") || s.name.ends_with("shared.up.weight"))
        << s.name;
  }
}

TEST(MoeTable, BiasesHaveARowForEachExpert) {
  auto const table = make_param_table(p3d::test::tiny_moe({.tp = 2, .dp = 2, .etp = 2, .ep = 2}, true));
  auto const check = [&](char const* name, std::int64_t rows, std::int64_t cols, std::vector<Split> const& splits) {
    auto const& s = table.find(std::string("layers.1.moe.") + name);
    EXPECT_EQ(std::pair(s.rows, s.cols), std::pair(rows, cols)) << name;
    EXPECT_EQ(s.splits, splits) << name;
    EXPECT_TRUE(s.trained && !s.decay && s.init == Init::zeros) << name;
    return s;
  };
  check("experts.gate.bias", 4, 6, {{0, Axis::ep}, {1, Axis::etp}});
  check("experts.up.bias", 4, 6, {{0, Axis::ep}, {1, Axis::etp}});
  // Ranks of etp see the same rows of an expert: each has the whole gradient of what they all hold.
  auto const down = check("experts.down.bias", 4, 12, {{0, Axis::ep}});
  EXPECT_EQ(down.gradient_axes(), AxisSet(Axis::edp));
  EXPECT_EQ(down.repeated_axes(), AxisSet(Axis::etp));
  EXPECT_EQ(check("router.linear_bias", 1, 4, {}).gradient_axes(), token_axes.plus(Axis::tp));
}

TEST(MoeTable, PublishedModelSize) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 32000, m.hidden = 4096, m.layers = 32, m.heads = 32, m.kv_heads = 8, m.ffn = 14336;
  m.norm = config::Norm::rmsnorm, m.position = config::Position::rope, m.activation = config::Activation::swiglu;
  m.bias = m.tied_embeddings = false;
  m.moe.experts = 8, m.moe.ffn = 14336;
  EXPECT_EQ(make_param_table(c).num_parameters(), 46'702'792'704) << "Mixtral 8x7B";
}

/// Meshes of up to 16 ranks whose experts' factorisation crosses the dense one.
std::vector<PerAxis> meshes() {
  return {{},
          {.dp = 2, .ep = 2},
          {.dp = 4, .ep = 2},
          {.dp = 2, .etp = 2},
          {.tp = 2, .dp = 2, .ep = 4},
          {.tp = 2, .dp = 2, .etp = 2, .ep = 2},
          {.tp = 2, .cp = 2, .dp = 2, .ep = 2},
          {.tp = 3, .dp = 4, .etp = 3, .ep = 2},
          {.tp = 2, .cp = 2, .pp = 3, .dp = 2, .etp = 2, .ep = 2},
          {.tp = 2, .cp = 2, .dp = 4, .etp = 2, .ep = 4},
          {.cp = 3, .dp = 4, .etp = 3, .ep = 2}};
}

class MoeMesh : public testing::TestWithParam<PerAxis> {
protected:
  MoeMesh()
      : config_(p3d::test::tiny_moe(GetParam())),
        grid_(config_.parallel, parse_order("tp-cp-pp-dp")),
        table_(make_param_table(config_)),
        stages_(make_stage_map(config_)) {}
  /// The ranks of a parameter's stage.
  std::vector<int> holders(ParamSpec const& spec) const {
    std::vector<int> out;
    for (int r = 0; r < grid_.num_ranks(); ++r)
      if (lives_on(spec, stages_, grid_.coordinates(r).pp)) out.push_back(r);
    return out;
  }
  LocalParam local(ParamSpec const& spec, int rank) const {
    auto const here = grid_.coordinates(rank);
    return StageParams(table_, stages_, here.pp, grid_.sizes(), here).find(spec.name);
  }
  static bool of_experts(ParamSpec const& s) { return s.name.find(".experts.") != std::string::npos; }

  config::Config config_;
  RankGrid grid_;
  ParamTable table_;
  StageMap stages_;
};

TEST_P(MoeMesh, BlocksTileEveryParameterOnceForEachReplica) {
  int experts_seen = 0;
  for (auto const& s : table_.specs()) {
    std::vector<int> held(static_cast<std::size_t>(s.size()));
    for (int rank : holders(s)) {
      auto const p = local(s, rank);
      EXPECT_EQ(p.offset % StageParams::alignment == 0 || s.follows_previous, true) << s.name;
      for (std::int64_t r = 0; r < p.valid_rows; ++r)
        for (std::int64_t c = 0; c < p.cols; ++c)
          ++held.at(static_cast<std::size_t>((p.row_begin + r) * s.cols + p.col_begin + c));
      if (!of_experts(s)) continue;
      ++experts_seen;
      // Whole experts, and of each the same columns.
      auto const h = config_.model.hidden;
      EXPECT_EQ(p.row_begin % h, 0);
      EXPECT_EQ(p.rows, config_.model.moe.experts / grid_.sizes().ep * h);
      EXPECT_EQ(p.row_begin, grid_.coordinates(rank).ep * p.rows);
      EXPECT_EQ(p.cols * grid_.sizes().etp, config_.model.moe.ffn);
      EXPECT_EQ(p.col_begin, grid_.coordinates(rank).etp * p.cols);
    }
    auto const replicas = of_experts(s) ? grid_.sizes().edp : grid_.group_size(s.replica_axes());
    for (int n : held) EXPECT_EQ(n, replicas) << s.name;
  }
  EXPECT_GT(experts_seen, 0);
}

TEST_P(MoeMesh, SetsOfAxes) {
  for (auto const& s : table_.specs()) {
    if (of_experts(s)) {
      EXPECT_EQ(s.gradient_axes(), AxisSet(Axis::edp)) << s.name;
      EXPECT_EQ(s.replica_axes(), AxisSet(Axis::edp)) << s.name;
      EXPECT_TRUE(s.repeated_axes().empty()) << s.name;
      EXPECT_EQ(s.mesh_axes(), expert_axes) << s.name;
    } else if (s.name.find("router") != std::string::npos || s.name.ends_with("shared_gate.weight")) {
      EXPECT_EQ(s.gradient_axes(), token_axes.plus(Axis::tp)) << s.name << ": as norms";
      EXPECT_TRUE(s.splits.empty()) << s.name;
    } else if (s.name.find(".shared.") != std::string::npos) {
      EXPECT_EQ(s.gradient_axes(), token_axes) << s.name << ": as the dense mlp";
      EXPECT_EQ(s.split_axes(), AxisSet(Axis::tp)) << s.name;
    }
  }
}

/// The gradient of an expert's element is the sum over the tokens that chose the expert. Tokens are dealt to all ranks
/// of a stage; each is sent to the ranks of its experts along ep, and all of etp get it. What each rank then has,
/// summed over a set of axes, is the gradient for those sets alone that the table names.
TEST_P(MoeMesh, TheGradientRuleAgreesWithRoutedTokens) {
  auto const& spec = table_.find("layers.1.moe.experts.down.weight");
  auto const ranks = holders(spec);
  auto const hidden = config_.model.hidden, experts = config_.model.moe.experts;
  constexpr int tokens = 48;
  auto const chosen = [&](int token, std::int64_t expert) { return token % 3 == 0 || token % experts == expert; };
  auto const term = [](int token, std::int64_t element) { return (token + 1) * (7 * element + 3) % 1009; };
  auto const gradient = [&](int rank, bool all) {
    auto const p = local(spec, rank);
    std::vector<std::int64_t> out;
    for (std::int64_t r = 0; r < p.rows; r += 5)  // some elements of each expert
      for (std::int64_t c = 0; c < p.cols; ++c) {
        auto& sum = out.emplace_back(0);
        auto const row = p.row_begin + r;
        for (int t = 0; t < tokens; ++t) {
          int const owner = ranks[static_cast<std::size_t>(t) % ranks.size()];
          bool const comes = grid_.coordinates(owner).edp == grid_.coordinates(rank).edp;
          if ((comes || all) && chosen(t, row / hidden)) sum += term(t, row * spec.cols + p.col_begin + c);
        }
      }
    return out;
  };
  std::map<int, std::vector<std::int64_t>> part, whole;
  for (int rank : ranks) part[rank] = gradient(rank, false), whole[rank] = gradient(rank, true);
  auto const axes = expert_axes.list();
  int right_sets = 0;
  for (unsigned bits = 0; bits < 1u << axes.size(); ++bits) {
    AxisSet set;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (bits >> i & 1u) set = set.plus(axes[i]);
    bool right = true, named = true;
    for (int rank : ranks) {
      std::vector<std::int64_t> sum(part[rank].size());
      for (int other : grid_.group(set, rank))
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[other][i];
      right = right && sum == whole[rank];
    }
    for (auto a : axes) named = named && (grid_.sizes()[a] == 1 || set.has(a) == spec.gradient_axes().has(a));
    EXPECT_EQ(right, named) << "summed over " << config::names(set, " ");
    right_sets += right;
  }
  EXPECT_GE(right_sets, 1);
}

INSTANTIATE_TEST_SUITE_P(Meshes, MoeMesh, testing::ValuesIn(meshes()));

}  // namespace
