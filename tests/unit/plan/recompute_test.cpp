// SPDX-License-Identifier: Apache-2.0
// The choice of what to recompute, against a walk over everything that may be chosen.

#include <p3d/plan/recompute.hpp>

#include <gtest/gtest.h>

#include <random>

namespace {
using namespace p3d;
using plan::RecomputeChoice;

/// Bytes and cost of a choice: something for each operation and layer, and scratch that the first full layer asks for.
struct Model {
  int layers = 0;
  double op_cost[3] = {}, full_cost = 0;
  std::int64_t op_bytes[3] = {}, layer_bytes = 0, scratch = 0;

  explicit Model(std::mt19937& random) {
    auto const draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    layers = draw(7);
    layer_bytes = 4;
    full_cost = 1;
    for (int i = 0; i < 3; ++i) {
      op_bytes[i] = draw(6);
      op_cost[i] = draw(4);  // equal costs happen
      layer_bytes += op_bytes[i];
      full_cost += op_cost[i] + draw(3);
    }
    scratch = draw(30);
  }
  static bool has(RecomputeChoice const& c, int op) {
    return op == 0 ? c.ops.norm : op == 1 ? c.ops.activation : c.ops.attention;
  }
  std::int64_t bytes(RecomputeChoice const& c) const {
    std::int64_t rest = layer_bytes, sum = c.full_layers > 0 ? scratch : 0;
    for (int i = 0; i < 3; ++i) rest -= has(c, i) ? op_bytes[i] : 0;
    return sum + c.full_layers + (layers - c.full_layers) * rest;
  }
  double cost(RecomputeChoice const& c) const {
    double each = 0;
    for (int i = 0; i < 3; ++i) each += has(c, i) ? op_cost[i] : 0;
    return c.full_layers * full_cost + (layers - c.full_layers) * each;
  }
};

TEST(ChooseRecompute, AgreesWithAWalkOverAllChoices) {
  std::mt19937 random(3);
  int chosen = 0, refused = 0, full = 0, lists = 0;
  for (int round = 0; round < 3000; ++round) {
    Model const model(random);
    auto const budget = static_cast<std::int64_t>(random() % 120);
    bool fits = false;
    double least_cost = 0;
    std::int64_t least_bytes = 0;
    for (bool norm : {false, true})
      for (bool activation : {false, true})
        for (bool attention : {false, true})
          for (int n = 0; n <= model.layers; ++n) {
            RecomputeChoice const c{{.norm = norm, .activation = activation, .attention = attention}, n};
            auto const b = model.bytes(c);
            if (b > budget) continue;
            double const cost = model.cost(c);
            if (fits && (cost > least_cost || (cost == least_cost && b >= least_bytes))) continue;
            fits = true;
            least_cost = cost;
            least_bytes = b;
          }
    auto const found = plan::choose_recompute(
        model.layers, budget, [&](auto const& c) { return model.bytes(c); },
        [&](auto const& c) { return model.cost(c); });
    ASSERT_EQ(found.has_value(), fits);
    ++(fits ? chosen : refused);
    if (!fits) continue;
    EXPECT_LE(model.bytes(*found), budget);
    EXPECT_EQ(model.cost(*found), least_cost);
    EXPECT_EQ(model.bytes(*found), least_bytes);
    full += found->full_layers > 0;
    lists += found->ops.any();
  }
  EXPECT_GT(chosen, 500);
  EXPECT_GT(refused, 100);
  EXPECT_GT(full, 50);
  EXPECT_GT(lists, 100);
}

// The order in which operations of GPT-2 are given up as the budget shrinks: by cost per byte.
TEST(ChooseRecompute, GivesUpNormsFirst) {
  config::Config c;
  c.model.hidden = c.model.heads * 64;
  c.model.ffn = 4 * c.model.hidden;
  c.model.seq_len = 1023;  // a query sees 512 keys in the mean
  layout::StageMap const stages({4}, 1);
  // Bytes of a layer and token, in elements of h: 16, of which norm 2, activation 4, attention 1, all but the input 15.
  auto const bytes = [&](RecomputeChoice const& choice) {
    std::int64_t sum = 0;
    for (auto const& l : plan::stage_recompute(choice, stages, 0).layers)
      sum += l.full ? 1 : 16 - (l.norm ? 2 : 0) - (l.activation ? 4 : 0) - (l.attention ? 1 : 0);
    return sum;
  };
  auto const cost = [&](RecomputeChoice const& choice) {
    return plan::recompute_cost_per_token(c, plan::stage_recompute(choice, stages, 0), 0, plan::Keys::seen);
  };
  std::vector<RecomputeChoice> chosen;
  for (std::int64_t budget = 64; budget >= 0; --budget) {
    auto const found = plan::choose_recompute(4, budget, bytes, cost);
    if (!found) break;
    if (chosen.empty() || !(chosen.back() == *found)) chosen.push_back(*found);
  }
  config::RecomputedOps const norm{.norm = true}, activation{.activation = true},
      both{.norm = true, .activation = true};
  ASSERT_GE(chosen.size(), 6u);
  EXPECT_EQ(chosen[0], (RecomputeChoice{{}, 0}));
  EXPECT_EQ(chosen[1], (RecomputeChoice{norm, 0}));
  EXPECT_EQ(chosen[2], (RecomputeChoice{activation, 0}));
  EXPECT_EQ(chosen[3], (RecomputeChoice{both, 0}));
  EXPECT_EQ(chosen[4], (RecomputeChoice{activation, 1}));  // cheaper than the attention of every layer
  EXPECT_EQ(chosen.back().full_layers, 4);
}

// Stages cut into parts of one layer: the first layers of the whole.
TEST(ChooseRecompute, CountsFullLayersWithinTheUncutStage) {
  auto const stages = layout::refine(layout::StageMap({3}, 1), {3});
  RecomputeChoice const choice{{.norm = true}, 2};
  EXPECT_TRUE(plan::stage_recompute(choice, stages, 1).layer(0).full);
  EXPECT_FALSE(plan::stage_recompute(choice, stages, 2).layer(0).full);
  EXPECT_TRUE(plan::stage_recompute(choice, stages, 2).layer(0).norm);
}

}  // namespace
