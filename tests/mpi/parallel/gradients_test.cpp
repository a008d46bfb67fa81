// SPDX-License-Identifier: Apache-2.0
// The squares of gradients for their norm, and the sums of gradients over replicas.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/parallel/gradients.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <vector>

namespace {

using namespace p3d;
using device::View1;

class Gradients : public ::testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
  device::ExecSpace exec;
  std::int64_t rank = world.rank();
  std::int64_t size = world.size();
};

/// The parameter table of a small model, dp = all ranks.
config::Config small_config(int ranks) {
  config::Config c;
  c.model.layers = 2;
  c.model.hidden = 8;
  c.model.heads = c.model.kv_heads = 2;
  c.model.ffn = 16;
  c.parallel.dp = ranks;
  return c;
}

/// Buckets by the rule as documented: from the back, until one has `bytes` or a layer ends; a tied parameter is alone;
/// all have the same axes here.
std::size_t buckets_of(std::vector<layout::LocalParam> const& items, std::int64_t bytes) {
  std::size_t count = 0;
  for (std::size_t last = items.size(); last > 0; ++count) {
    auto const end = items[last - 1].offset + items[last - 1].size();
    auto const goes_on = [&] {
      auto const &spec = *items[last].spec, &next = *items[last - 1].spec;
      return 8 * (end - items[last].offset) < bytes && spec.layer == next.layer && !spec.tied && !next.tied;
    };
    do --last;
    while (last > 0 && goes_on());
  }
  return count;
}

TEST_F(Gradients, SquaresOfAllRanksAddUpToThoseOfTheModel) {
  // 3-D, and with tied embeddings: every layout of the ranks as (dp, tp, pp), each rank's share computed here or there.
  auto config = small_config(static_cast<int>(size));
  config.model.tied_embeddings = true;
  config.model.heads = config.model.kv_heads = 24;
  config.model.hidden = 48;
  config.model.ffn = 24;
  config.model.layers = 8;
  auto const table = layout::make_param_table(config);
  double expected = 0.0;  // every element of a parameter is 1 + its number, and padding is never counted twice
  for (std::size_t k = 0; k < table.specs().size(); ++k)
    expected += static_cast<double>(table.specs()[k].size()) * static_cast<double>((k + 1) * (k + 1));
  int const n = static_cast<int>(size);
  int layouts = 0;
  for (int dp = 1; dp <= n; ++dp) {
    for (int t = 1; dp * t <= n; ++t) {
      if (n % (dp * t) != 0) continue;
      int const pp = n / (dp * t), me = static_cast<int>(rank);
      if (config.model.heads % t != 0) continue;
      layout::PerAxis const sizes{.tp = t, .pp = pp, .dp = dp};
      auto here = layout::PerAxis::all(0);
      here.dp = me % dp;
      here.tp = me / dp % t;
      here.pp = me / dp / t;
      layout::StageMap const stages(layout::even_layers(8, pp), pp);
      layout::StageParams const params(table, stages, here.pp, sizes, here);
      device::Owned1<double> grads("p3d::test::grads", static_cast<std::size_t>(params.flat_size()));
      auto const host = device::new_host_view(grads);
      Kokkos::deep_copy(host, 0.0);
      for (auto const& item : params.items()) {
        auto const number = static_cast<double>(item.spec - table.specs().data() + 1);
        for (std::int64_t i = 0; i < item.valid_rows * item.cols; ++i) host(item.offset + i) = number;
      }
      Kokkos::deep_copy(grads, host);
      layout::RankGrid const grid(sizes, layout::parse_order("dp-tp-pp"));
      auto const shard = layout::make_shard(params, 64, grid, here, {});
      device::Owned1<double> const squares("p3d::test::squares", 1);
      std::vector<parallel::StageGradients<double>> const own{{&params, &shard, grads, here.pp == 0}};
      parallel::add_sum_squares<double>(exec, own, false, here, squares);
      double sum = kernels::take_sums(exec, squares)[0];
      world.all_reduce(&sum, 1, comm::Type::float64, comm::Reduction::sum).wait();
      EXPECT_NEAR(sum, expected, 1e-12 * expected) << "dp " << dp << " tp " << t << " pp " << pp;
      ++layouts;
    }
  }
  EXPECT_GE(layouts, size > 1 ? 3 : 1);
}

TEST_F(Gradients, SquaresHaveTheirBitsHoweverAStageIsCutIntoPieces) {
  // The vocabulary is divided over the pipeline: it lies in a rank's first piece, between layers that are neighbours.
  auto config = small_config(1);
  config.model.layers = 4 * static_cast<int>(size);
  config.model.tied_embeddings = false;
  config.pipeline.vocab_parallel = true;
  config.parallel.dp = 1;
  config.parallel.pp = static_cast<int>(size);
  auto const table = layout::make_param_table(config);
  auto const here = layout::PerAxis::only(layout::Axis::pp, static_cast<int>(rank));
  layout::RankGrid const grid(config.parallel, layout::parse_order("pp"));
  auto const squares_of = [&](int pieces, int seed) {
    std::vector<int> rank_of;
    for (int r = 0; r < size; ++r) rank_of.insert(rank_of.end(), static_cast<std::size_t>(pieces), r);
    auto const layers = layout::even_layers(static_cast<int>(config.model.layers), pieces * static_cast<int>(size));
    auto const stages = layout::StageMap(layers, rank_of, static_cast<int>(size)).with_vocabulary(true);
    std::deque<layout::StageParams> params;
    std::deque<layout::StateShard> shards;
    std::deque<device::Owned1<double>> gradients;
    std::vector<parallel::StageGradients<double>> own;
    for (int const stage : stages.stages_of(here.pp)) {
      auto const& of = params.emplace_back(table, stages, stage, config.parallel, here);
      auto const& shard = shards.emplace_back(layout::make_shard(of, 1 << 30, grid, here, {}));
      auto const& of_stage = gradients.emplace_back("p3d::test::grads", static_cast<std::size_t>(of.flat_size()));
      auto const host = device::new_host_view(of_stage);
      Kokkos::deep_copy(host, 0.0);
      for (auto const& item : of.items()) {
        auto const number = static_cast<double>(item.spec - table.specs().data() + seed);
        for (std::int64_t i = 0; i < item.valid_rows * item.cols; ++i)
          host(item.offset + i) = std::sin(number + static_cast<double>(i));
      }
      Kokkos::deep_copy(of_stage, host);
      own.push_back({&of, &shard, of_stage, stages.is_first(stage)});
    }
    device::Owned1<double> const squares("p3d::test::squares", 1);
    parallel::add_sum_squares<double>(exec, own, false, here, squares);
    return kernels::take_sums(exec, squares)[0];
  };
  for (int seed = 0; seed < 20; ++seed)  // another order of one sum may round alike
    for (int pieces : {2, 4}) EXPECT_EQ(squares_of(pieces, seed), squares_of(1, seed)) << "seed " << seed;
}

TEST_F(Gradients, ReducerSumsEveryElementOnceWhateverTheBuckets) {
  auto const config = small_config(static_cast<int>(size));
  auto const table = layout::make_param_table(config);
  auto const stages = layout::make_stage_map(config);
  layout::StageParams const params(table, stages, 0, {.dp = static_cast<int>(size)},
                                   layout::PerAxis::only(layout::Axis::dp, static_cast<int>(rank)));
  for (std::size_t bucket : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 30}) {
    device::Owned1<double> grads("p3d::test::grads", static_cast<std::size_t>(params.flat_size()));
    auto const host = device::new_host_view(grads);  // a copy of its own on every backend
    for (std::int64_t i = 0; i < params.flat_size(); ++i)
      host(i) = static_cast<double>(i % 17) * static_cast<double>(rank + 1);
    layout::PerAxis const sizes{.dp = static_cast<int>(size)};
    auto const here = layout::PerAxis::only(layout::Axis::dp, static_cast<int>(rank));
    layout::RankGrid const grid(sizes, {layout::Axis::dp});
    auto const shard = layout::make_shard(params, static_cast<std::int64_t>((bucket + 7) / 8), grid, here, {});
    parallel::GradientReducer<double> reducer(exec, shard, grads, [&](layout::AxisSet axes) -> comm::Communicator& {
      EXPECT_TRUE(axes == layout::token_axes);
      return world;
    });
    EXPECT_EQ(reducer.num_buckets(), buckets_of(params.items(), static_cast<std::int64_t>(bucket)));
    if (bucket == 1) {
      EXPECT_EQ(reducer.num_buckets(), params.items().size());
    } else if (bucket > 4096) {
      EXPECT_EQ(reducer.num_buckets(), 3u + static_cast<std::size_t>(config.model.layers));
    }
    for (int step = 0; step < 2; ++step) {
      Kokkos::deep_copy(grads, -1000.0);  // not a gradient yet
      reducer.begin();
      test::expect_error([&] { reducer.finish(); }, "every gradient is complete before the reduction ends");
      for (std::size_t i = params.items().size(); i-- > 0;) {
        auto const& item = params.items()[i];
        Kokkos::pair<std::int64_t, std::int64_t> const range(item.offset, item.offset + item.size());
        Kokkos::deep_copy(Kokkos::subview(grads, range), Kokkos::subview(host, range));
        reducer.ready(i, i + 1);
      }
      reducer.finish();
      test::expect_error([&] { reducer.ready(0, 1); }, "a parameter is marked ready once a step");
      auto const result = device::host_copy(grads);
      double const factor = static_cast<double>(size * (size + 1)) / 2.0;
      for (auto const& item : params.items()) {
        for (std::int64_t i = item.offset; i < item.offset + item.size(); ++i) {
          ASSERT_DOUBLE_EQ(result(i), static_cast<double>(i % 17) * factor) << item.spec->name;
        }
      }
    }
  }
}

}  // namespace
