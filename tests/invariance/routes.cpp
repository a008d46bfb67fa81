// SPDX-License-Identifier: Apache-2.0
// fp32, where experts nearly tie: rounding sends tokens of another layout to other experts, and no two runs have the
// same losses. With the routes of one rank in every layout they have. How often rounding decides depends on the
// processor's GEMMs, so one run of each layout has its ties turned on purpose: there nearly all routes would be others.

#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using Trainer = engine::Trainer<device::Fp32>;
using Words = std::vector<std::string>;

constexpr int steps = 4;

config::Config make_config(Words const& router, Words const& layout, int ranks) {
  Words const words{"model.preset=llama-tiny",
                    "model.vocab_size=257",
                    "model.layers=2",
                    "model.hidden=32",
                    "model.heads=4",
                    "model.kv_heads=4",
                    "model.seq_len=24",
                    "model.ffn=48",
                    "model.moe.experts=8",
                    "model.moe.top_k=2",
                    "model.moe.ffn=32",
                    "run.precision=fp32",
                    "run.steps=4",
                    "run.eval_batches=1",
                    "batch.global=8",
                    "optimizer.lr=1e-4",
                    "optimizer.warmup_steps=1",
                    test::licence_text()};
  return test::config_of(test::joined({words, router, layout}), ranks);
}

/// What decides between the experts where they nearly tie: their own weights, or these with the other sign, which turn
/// every order of logits around but for those that rounding decides.
enum class Ties { as_they_are, turned };

/// All experts' logits get a large common part, beside which their own is small; and what experts give is large, so
/// that it matters.
void make_ties(Trainer& trainer, Ties ties) {
  for (auto const& part : trainer.checkpoint_parts({})) {
    bool const router = part.array.ends_with("router.weight");
    if (!router && !part.array.ends_with("experts.down.weight")) continue;
    std::vector<float> block(static_cast<std::size_t>(part.rows * part.cols));
    part.copy_out(0, std::ssize(block), block.data());
    for (std::int64_t i = 0; i < std::ssize(block); ++i) {
      auto& x = block[static_cast<std::size_t>(i)];
      auto const column = static_cast<double>(part.col_begin + i % part.cols);
      auto const own = ties == Ties::turned ? x * -1e-4F : x * 1e-4F;
      x = router ? own + static_cast<float>(std::sin(1.0 + column)) : x * 50.0F;
    }
    part.copy_in(0, std::ssize(block), block.data());
  }
}

struct Run {
  std::vector<double> losses;
  std::int64_t flipped = 0;
};

Run train(config::Config const& config, comm::Communicator const& comm, model::RouteLog* record,
          model::RouteLog const* replay, Ties ties = Ties::as_they_are) {
  Trainer trainer(config, comm);
  make_ties(trainer, ties);
  trainer.inspection().record_routes(record);
  trainer.inspection().replay_routes(replay);
  Run out;
  for (int s = 0; s < steps; ++s) out.losses.push_back(trainer.step().loss);
  out.flipped = trainer.inspection().flipped_routes();
  return out;
}

double deviation(Run const& a, Run const& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    double const off = std::fabs(a.losses[i] - b.losses.at(i)) / std::fabs(a.losses[i]);
    most = off <= most ? most : off;  // takes NaN
  }
  return most;
}

std::vector<Words> layouts(int ranks) {
  if (ranks == 1) return {{"batch.micro=8"}, {"batch.micro=2", "memory.recompute=full"}};
  if (ranks == 2)
    return {{"parallel.tp=2", "parallel.sequence=true", "parallel.ep=2"},
            {"parallel.cp=2", "parallel.etp=2", "batch.micro=2"},
            {"parallel.dp=2", "parallel.ep=2", "memory.shard=parameters"},
            {"parallel.pp=2", "batch.micro=4"}};
  return {{"parallel.tp=2", "parallel.sequence=true", "parallel.dp=2", "parallel.etp=2", "parallel.ep=2"},
          {"parallel.pp=2", "parallel.tp=2", "parallel.sequence=true", "memory.recompute=full"},
          {"parallel.cp=2", "parallel.dp=2", "parallel.ep=4", "memory.shard=parameters"}};
}

class ReplayedRoutes : public ::testing::TestWithParam<Words> {};

TEST_P(ReplayedRoutes, LossesAgreeWhereTheyAreTheSame) {
  auto world = comm::Communicator::world();
  model::RouteLog log;
  auto const plain = train(make_config(GetParam(), {"batch.micro=1"}, 1), comm::Communicator::self(), &log, nullptr);
  ASSERT_EQ(log.routes.size(), std::size_t{steps} * 2 * 8 * 24);  // each layer's, of each token
  auto const routes = std::ssize(log.routes);
  constexpr double tolerance = 2e-5;
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const config = make_config(GetParam(), layout, world.size());
    auto const replayed = train(config, world, nullptr, &log);
    EXPECT_LE(deviation(plain, replayed), tolerance);
    auto const turned = train(config, world, nullptr, &log, Ties::turned);
    EXPECT_LE(deviation(plain, turned), tolerance);
    EXPECT_GT(turned.flipped, routes / steps / 2) << "of those of the first step, before weights learn";
    auto const own = train(config, world, nullptr, nullptr, Ties::turned);
    EXPECT_GT(deviation(plain, own), 5 * tolerance) << "the losses do not tell routes apart";
    if (world.rank() == 0)
      fmt::print(
          "{} {}: {} of {} routes would have flipped, losses within {:.1e}; turned, {} would have flipped, losses "
          "within {:.1e}, without replay {:.1e}\n",
          GetParam().empty() ? "softmax" : "sigmoid", fmt::join(layout, " "), replayed.flipped, routes,
          deviation(plain, replayed), turned.flipped, deviation(plain, turned), deviation(plain, own));
  }
}

TEST(Routes, AreNotTouchedByReplayOfTheSameRun) {
  model::RouteLog log, again;
  auto const config = make_config({}, {"batch.micro=1"}, 1);
  auto const first = train(config, comm::Communicator::self(), &log, nullptr);
  auto const second = train(config, comm::Communicator::self(), &again, &log);
  EXPECT_EQ(log.routes, again.routes);
  EXPECT_EQ(second.flipped, 0);
  EXPECT_EQ(first.losses, second.losses);
}

TEST(Routes, OfOtherTokensAreRefused) {
  model::RouteLog log;
  EXPECT_ANY_THROW(train(make_config({}, {"batch.micro=1"}, 1), comm::Communicator::self(), nullptr, &log));
}

INSTANTIATE_TEST_SUITE_P(Routers, ReplayedRoutes,
                         ::testing::Values(Words{}, Words{"model.moe.score=sigmoid", "model.moe.scale=2.5",
                                                          "model.moe.normalize=false"}));

}  // namespace
