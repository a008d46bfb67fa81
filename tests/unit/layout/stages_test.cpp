// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/layout/stages.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace {
using namespace p3d::layout;

TEST(EvenLayers, ThirtyOnFourLosesNoLayer) {
  EXPECT_EQ(even_layers(30, 4), (std::vector<int>{8, 8, 7, 7}));
  EXPECT_EQ(even_layers(2, 3), (std::vector<int>{1, 1, 0}));
}

TEST(EvenLayers, SumsAndDiffersByAtMostOne) {
  for (int layers = 0; layers <= 20; ++layers) {
    for (int stages = 1; stages <= 9; ++stages) {
      auto const v = even_layers(layers, stages);
      EXPECT_EQ(std::accumulate(v.begin(), v.end(), 0), layers);
      EXPECT_TRUE(std::is_sorted(v.rbegin(), v.rend()));
      EXPECT_LE(v.front() - v.back(), 1);
    }
  }
}

// Of the ranks.
double worst(std::vector<int> const& v, std::vector<int> const& rank, double layer, double first, double last) {
  std::vector<double> cost(v.size());
  for (std::size_t s = 0; s < v.size(); ++s) {
    cost[static_cast<std::size_t>(rank[s])] += v[s] * layer + (s == 0 ? first : 0.0) + (s + 1 == v.size() ? last : 0.0);
  }
  return *std::max_element(cost.begin(), cost.end());
}

// Every division of `layers` among `stages` that gives each at least what it needs.
void each_division(int layers, int stages, std::vector<int>& v, std::function<void()> const& visit) {
  auto const s = static_cast<int>(v.size());
  for (int n = least_layers(s, stages); n <= layers; ++n) {
    v.push_back(n);
    if (s + 1 < stages) {
      each_division(layers - n, stages, v, visit);
    } else if (n == layers) {
      visit();
    }
    v.pop_back();
  }
}

TEST(BalancedLayers, IsTheBestOfAllDivisions) {
  std::vector<std::vector<int>> const placements{
      {0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3, 4}, {0, 1, 0, 1}, {0, 1, 2, 2, 1, 0}};
  for (int layers = 1; layers <= 9; ++layers) {
    for (auto const& ranks : placements) {
      auto const stages = static_cast<int>(ranks.size());
      if (layers < stages - 2) continue;
      for (double first : {0.0, 0.5, 2.0}) {
        for (double last : {0.0, 0.3, 1.0, 3.7, 30.0}) {
          auto const found = balanced_layers(layers, ranks, 1.0, first, last);
          ASSERT_EQ(std::accumulate(found.begin(), found.end(), 0), layers);
          for (int s = 0; s < stages; ++s) ASSERT_GE(found[static_cast<std::size_t>(s)], least_layers(s, stages));
          double best = std::numeric_limits<double>::infinity();
          std::vector<int> v;
          each_division(layers, stages, v, [&] { best = std::min(best, worst(v, ranks, 1.0, first, last)); });
          EXPECT_DOUBLE_EQ(worst(found, ranks, 1.0, first, last), best) << layers << " on " << stages;
        }
      }
    }
  }
}

TEST(BalancedLayers, WithoutExtraCostsIsEven) {
  EXPECT_EQ(balanced_layers(30, {0, 1, 2, 3}, 2.5, 0.0, 0.0), even_layers(30, 4));
}

TEST(BalancedLayers, CountsAllStagesOfARank) {
  // GPT-2 124M in the form of a V: the head weighs 5.4 layers and is on rank 0.
  EXPECT_EQ(balanced_layers(12, {0, 1, 2, 3, 3, 2, 1, 0}, 1.0, 0.0, 5.4), (std::vector<int>{0, 2, 2, 2, 2, 2, 2, 0}));
}

TEST(StageMap, RangesFollowEachOther) {
  StageMap const map({3, 0, 2, 4}, 4);
  EXPECT_EQ(map.num_layers(), 9);
  EXPECT_EQ(map.layers(0), (Range{0, 3}));
  EXPECT_EQ(map.layers(1), (Range{3, 3}));
  EXPECT_EQ(map.layers(2), (Range{3, 5}));
  EXPECT_EQ(map.layers(3), (Range{5, 9}));
  EXPECT_TRUE(map.is_first(0) && map.is_last(3));
  EXPECT_FALSE(map.is_first(1) || map.is_last(2));
  EXPECT_THROW(map.layers(4), p3d::base::Error);
}

TEST(StageMap, VirtualStagesGoRoundTheRanks) {
  StageMap const map({1, 1, 1, 1, 1, 1}, 3);
  EXPECT_EQ(map.stages_of(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(map.pipeline_rank(4), 1);
  EXPECT_THROW(StageMap({1, 1, 1, 1}, 3), p3d::base::Error);
}

TEST(StageMap, PlacesStagesWhereItIsTold) {
  StageMap const v({2, 1, 1, 2}, {0, 1, 1, 0}, 2);
  EXPECT_EQ(v.stages_of(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(v.stages_of(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(v.pipeline_rank(3), 0);
  EXPECT_THROW(StageMap({1, 1}, {0, 0}, 2), p3d::base::Error) << "rank 1 has no stage";
  EXPECT_THROW(StageMap({1, 1}, {0, 2}, 2), p3d::base::Error) << "there is no rank 2";
  EXPECT_THROW(StageMap({1, 1}, {0}, 1), p3d::base::Error) << "stage 1 has no rank";
}

TEST(MakeStageMap, FollowsThePipelineSection) {
  p3d::config::Config c;
  c.model.layers = 30;
  c.parallel.pp = 4;
  auto sizes = [](StageMap const& m) {
    std::vector<int> v;
    for (int s = 0; s < m.num_stages(); ++s) v.push_back(m.num_layers(s));
    return v;
  };
  EXPECT_EQ(sizes(make_stage_map(c)), (std::vector<int>{8, 8, 7, 7}));

  c.pipeline.layer_split = p3d::config::LayerSplit::list;
  c.pipeline.layers_per_stage = {6, 9, 9, 6};
  EXPECT_EQ(sizes(make_stage_map(c)), c.pipeline.layers_per_stage);
  c.pipeline.layers_per_stage = {6, 9, 9, 5};
  EXPECT_THROW(make_stage_map(c), p3d::base::Error);

  // hidden 64, ffn 256, sequence 64: one layer is 4*64^2 + 64*64 + 2*64*256 = 53248 multiply-adds per token; a
  // vocabulary of 2496 makes the head 64*2496 = 3 layers. So 30 + 3 units on 4 stages: 9, 8, 8 and 5 + 3.
  c.pipeline.layer_split = p3d::config::LayerSplit::cost;
  c.model.vocab_size = 2496;
  EXPECT_EQ(sizes(make_stage_map(c)), (std::vector<int>{9, 8, 8, 5}));

  // 4096 tokens, each seeing 64: 64 x 64 - 64 x 63 / 2 fewer pairs than 4096 x 64, that is 64 (128 - 1) multiply-adds
  // per token. A layer is 49152 + 8128, a vocabulary of 2685 again 3 layers; without the window it is half a layer.
  c.model.seq_len = 4096;
  c.model.vocab_size = 2685;
  EXPECT_EQ(sizes(make_stage_map(c)), (std::vector<int>{8, 8, 7, 7}));
  c.model.window = {64};
  EXPECT_EQ(sizes(make_stage_map(c)), (std::vector<int>{9, 8, 8, 5}));
}

TEST(Vocabulary, BelongsToTheEndStagesOrToAllRanks) {
  p3d::config::Config c;
  c.model.layers = 4;
  c.parallel.tp = 2;
  c.parallel.pp = 2;
  c.model.tied_embeddings = true;
  for (bool const divided : {false, true}) {
    SCOPED_TRACE(divided ? "divided" : "whole");
    c.pipeline.vocab_parallel = divided;
    for (auto const& stages : {make_stage_map(c), make_stage_map(c, {0, 1, 1, 0}), refine(make_stage_map(c), {2, 2})}) {
      EXPECT_EQ(stages.stages_own_vocabulary(), !divided);
      for (int s = 0; s < stages.num_stages(); ++s) {
        EXPECT_EQ(stages.has_embedding(s), !divided && s == 0);
        EXPECT_EQ(stages.has_head(s), !divided && s + 1 == stages.num_stages());
      }
    }
    EXPECT_EQ(c.vocabulary_parts(), divided ? 4 : 2);
    EXPECT_EQ(c.ranks_share_embedding(), !divided);
  }
  c.pipeline.vocab_parallel = false;
  c.model.tied_embeddings = false;
  EXPECT_FALSE(c.ranks_share_embedding()) << "head and embedding are two matrices";
  c.model.tied_embeddings = true;
  c.parallel.pp = 1;
  EXPECT_FALSE(c.ranks_share_embedding()) << "there is one pipeline rank";
}

}  // namespace
