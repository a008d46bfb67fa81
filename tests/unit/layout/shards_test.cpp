// SPDX-License-Identifier: Apache-2.0
// Who owns which part of a bucket, against the ranks of communicators counted by hand: in every order of the axes.

#include "tiny_models.hpp"

#include <p3d/layout/shards.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace {
using namespace p3d;
using namespace p3d::layout;

std::vector<PerAxis> meshes() {
  return {{.dp = 3},
          {.cp = 2, .dp = 3},
          {.tp = 2, .cp = 2, .dp = 3},
          {.tp = 2, .cp = 3, .pp = 2, .dp = 2},
          {.tp = 3, .cp = 2, .pp = 3, .dp = 2},
          {.cp = 2, .dp = 2, .ep = 2},
          {.cp = 2, .dp = 4, .ep = 4},
          {.tp = 2, .cp = 2, .dp = 2, .ep = 2},
          {.tp = 2, .cp = 2, .dp = 2, .etp = 2, .ep = 2},
          {.tp = 2, .cp = 2, .pp = 2, .dp = 4, .etp = 2, .ep = 2}};
}

std::vector<Axis> first_order() {
  auto order = dense_axes.list();
  std::sort(order.begin(), order.end());
  return order;
}

/// The ranks that differ from one only along some axes, as MPI_Cart_sub numbers them: in the order of the mesh.
std::vector<int> ranks_along(RankGrid const& grid, AxisSet axes, int rank) {
  auto const all = (axes.meets(expert_axes) ? expert_axes : stage_axes).plus(Axis::pp).minus(axes);
  auto const mine = grid.coordinates(rank);
  std::vector<int> out;
  for (int r = 0; r < grid.num_ranks(); ++r) {
    auto const other = grid.coordinates(r);
    auto const kept = all.list();
    if (std::all_of(kept.begin(), kept.end(), [&](Axis a) { return other[a] == mine[a]; })) out.push_back(r);
  }
  return out;
}

int index_of(std::vector<int> const& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

TEST(Shards, ARanksPartHasItsNumberInTheCommunicatorInEveryOrder) {
  int layouts = 0, of_several_axes = 0, refused = 0;
  for (auto const& sizes : meshes()) {
    auto const config = test::tiny_moe(sizes);
    auto const table = make_param_table(config);
    auto const stages = make_stage_map(config);
    auto order = first_order();
    do {
      if (!config::refine(sizes, order)) continue;
      RankGrid const grid(sizes, order);
      SCOPED_TRACE(config::to_text(order));
      ++layouts;
      for (int rank = 0; rank < grid.num_ranks(); ++rank) {
        auto const here = grid.coordinates(rank);
        StageParams const params(table, stages, here.pp, grid.sizes(), here);
        auto const shard = make_shard(params, 512, grid, here, {.divided = true});
        auto const whole = make_shard(params, 512, grid, here, {});
        for (std::size_t b = 0; b < shard.buckets.size(); ++b) {
          auto const& bucket = shard.buckets[b];
          auto const ranks = ranks_along(grid, bucket.axes, rank);
          auto const& bounds = shard.bounds[b];
          ASSERT_EQ(bounds.size(), ranks.size() + 1);
          EXPECT_EQ(bounds.front(), 0);
          EXPECT_EQ(bounds.back(), bucket.size());
          int const number = index_of(ranks, rank);
          auto const at = static_cast<std::size_t>(number);
          for (auto const* run : {&shard.parts[b], &shard.owned[b], &whole.parts[b]}) {
            ASSERT_EQ(run->begin, bucket.begin + bounds[at]) << "rank " << rank << ", bucket " << b;
            ASSERT_EQ(run->count, bounds[at + 1] - bounds[at]);
          }
          int const size = static_cast<int>(ranks.size());
          EXPECT_NO_THROW(require_part(shard, b, number, size));
          of_several_axes += sizes.product(bucket.axes.minus(Axis::dp)) > 1 && grid.sizes().dp > 1;
          test::expect_error([&] { require_part(shard, b, number, size + 1); }, "a part for each rank");
          int const other = (number + 1) % size;  // may have the same part where both are empty
          if (bounds[static_cast<std::size_t>(other)] == bounds[at]) continue;
          test::expect_error([&] { require_part(shard, b, other, size); }, "that its communicator gives");
          ++refused;
        }
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
  EXPECT_GE(layouts, 150);
  EXPECT_GE(of_several_axes, 1000);
  EXPECT_GE(refused, 1000);
}

TEST(Buckets, HoldGroupsOfLayers) {
  auto config = test::tiny_llama();
  config.model.layers = 5;
  auto const table = make_param_table(config);
  auto const stages = make_stage_map(config);
  StageParams const params(table, stages, 0, config.parallel, PerAxis::all(0));
  // By layers: what the parameters of each bucket are of. The embedding (-1) is alone; the head side counts as layer 5.
  auto const layers_of = [&](BucketRule const& rule) {
    std::vector<std::vector<int>> out;
    std::size_t next = 0;
    for (auto const& b : make_buckets(params, rule)) {
      EXPECT_EQ(b.first, next);
      next = b.last;
      auto& layers = out.emplace_back();
      for (auto i = b.first; i < b.last; ++i)
        if (int const l = params.items()[i].spec->layer; layers.empty() || layers.back() != l) layers.push_back(l);
    }
    EXPECT_EQ(next, params.items().size());
    return out;
  };
  using Layers = std::vector<std::vector<int>>;
  EXPECT_EQ(layers_of({1, 2}), (Layers{{-1}, {0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(layers_of({1, 3}), (Layers{{-1}, {0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(layers_of({1, 100}), (Layers{{-1}, {0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(layers_of({1 << 30}), (Layers{{-1}, {0}, {1}, {2}, {3}, {4}, {5}}));
}

TEST(Buckets, AreThoseOfAStageHoweverItIsCutIntoPieces) {
  // With offloaded weights the vocabulary lies in a rank's first piece, away from the final norm. The parts of a bucket
  // set the order in which squares are added, so a bucket must not hold both where no piece does.
  auto config = test::tiny_llama();
  config.model.layers = 4;
  config.model.tied_embeddings = false;
  config.parallel.pp = 2;
  config.pipeline.vocab_parallel = true;
  auto const table = make_param_table(config);
  auto const names = [&](StageMap const& stages, int rank) {
    std::multiset<std::set<std::string>> out;
    for (int s : stages.stages_of(rank)) {
      StageParams const params(table, stages, s, config.parallel, PerAxis::only(Axis::pp, rank));
      for (auto const& b : make_buckets(params, 1 << 30)) {
        std::set<std::string> bucket;
        for (auto i = b.first; i < b.last; ++i) bucket.insert(params.items()[i].spec->name);
        out.insert(bucket);
      }
    }
    return out;
  };
  StageMap const whole = StageMap(even_layers(4, 2), 2).with_vocabulary(true);
  StageMap const pieces = StageMap(even_layers(4, 4), {0, 0, 1, 1}, 2).with_vocabulary(true);
  for (int rank : {0, 1}) EXPECT_EQ(names(pieces, rank), names(whole, rank));
}

TEST(Shards, GroupsOfReplicasOwnTheirNumbersInEveryOrder) {
  int hybrids = 0;
  for (PerAxis const sizes : {PerAxis{.dp = 6}, {.tp = 2, .dp = 4}, {.pp = 3, .dp = 4}, {.tp = 2, .pp = 2, .dp = 6}}) {
    auto const config = test::tiny_moe(sizes);
    auto const table = make_param_table(config);
    auto const stages = make_stage_map(config);
    auto order = first_order();
    do {
      RankGrid const grid(sizes, order);
      for (int rank = 0; rank < grid.num_ranks(); ++rank) {
        auto const here = grid.coordinates(rank);
        int const over = 2, own = here.dp % over, between = here.dp / over;
        StageParams const params(table, stages, here.pp, grid.sizes(), here);
        auto const shard = make_shard(params, 512, grid, here, {.divided = true, .over = over});
        for (std::size_t b = 0; b < shard.buckets.size(); ++b) {
          auto const ranks = ranks_along(grid, shard.buckets[b].axes, rank);
          EXPECT_NO_THROW(require_part(shard, b, index_of(ranks, rank), static_cast<int>(ranks.size())));
          if (!shard.hybrid[b]) continue;
          EXPECT_NO_THROW(require_hybrid_part(shard, b, own, between));
          auto const& bounds = shard.bounds[b];
          if (std::adjacent_find(bounds.begin(), bounds.end()) != bounds.end()) continue;  // parts may be empty
          test::expect_error([&] { require_hybrid_part(shard, b, 1 - own, between); }, "that its group gives it");
          test::expect_error([&] { require_hybrid_part(shard, b, own, (between + 1) % (sizes.dp / over)); },
                             "that it has between the groups");
          ++hybrids;
        }
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
  EXPECT_GE(hybrids, 1000);
}

}  // namespace
