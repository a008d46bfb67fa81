// SPDX-License-Identifier: Apache-2.0
// Evaluation and sampling under every schedule, with messages below and above what MPI sends eagerly: a program that
// only runs with eager sends hangs here. pp is the number of ranks; 1 to 3 microbatches a rank. Some of all
// combinations; with P3D_EVERY_PROGRAM=1 every one (tests/invariance/full_evaluations.sh).

#include <p3d/comm/wait.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/schedule/registry.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;

struct MessageSize {
  int hidden, seq_len;
};

config::Config make_config(schedule::Generator const& g, int pp, int microbatches, MessageSize size) {
  return test::config_of(
      test::joined(
          {test::tiny_model(g.stages_per_rank * pp),
           {"model.preset=gpt2-tiny", fmt::format("model.hidden={}", size.hidden), "model.ffn=16",
            fmt::format("model.seq_len={}", size.seq_len), "batch.micro=1",
            fmt::format("batch.microbatches={}", microbatches), "run.precision=fp64", fmt::format("parallel.pp={}", pp),
            fmt::format("pipeline.schedule={}", pp > 1 ? g.name : "1f1b"), test::licence_text()}}),
      pp);
}

TEST(Evaluation, RunsUnderEverySchedule) {
  auto world = comm::Communicator::world();
  auto self = comm::Communicator::self();
  auto policy = comm::wait_policy();
  policy.timeout_s = 30.0;  // a hang is reported with the program's place, and ends the test
  comm::set_wait_policy(policy);
  int const pp = world.size();
  bool const every = std::getenv("P3D_EVERY_PROGRAM") != nullptr;
  MessageSize const sizes[] = {{16, 16}, {48, 40}, {64, 96}};  // 2, 15 and 48 KiB in fp64
  std::size_t turn = 0;
  for (schedule::Generator const* g : schedule::generators()) {
    std::set<int> counts;
    for (int m = 1; m <= 3 * pp; ++m)
      if (every || m == 2 * pp || m == 3 * pp || m == 1) counts.insert(std::max(m, g->smallest_microbatches(pp)));
    for (int const m : counts) {
      ++turn;
      for (std::size_t size = 0; size < 3; ++size) {
        if (!every && turn % 3 != size) continue;
        SCOPED_TRACE(fmt::format("{}, pp {}, m {}, hidden {}, {} tokens", g->name, pp, m, sizes[size].hidden,
                                 sizes[size].seq_len));
        engine::Trainer<device::Fp64> trainer(make_config(*g, pp, m, sizes[size]), world);
        double const loss = trainer.evaluate(2);
        auto alone = make_config(*g, pp, m, sizes[size]);
        alone.parallel.pp = 1;
        alone.pipeline.schedule = "1f1b";
        double const expected = engine::Trainer<device::Fp64>(alone, self).evaluate(2);
        ASSERT_NEAR(loss, expected, 1e-9 * expected);
        if (m == *counts.begin()) {
          ASSERT_EQ(test::greedy(trainer, "The", 1).size(), 1u);
        }
      }
    }
  }
}

// Evaluation of training, and of a text with masked windows at its end, where the vocabulary is divided.
TEST(Evaluation, WithADividedVocabulary) {
  auto world = comm::Communicator::world();
  auto self = comm::Communicator::self();
  auto const* const g = schedule::find_generator("zb_v");
  auto config = make_config(*g, world.size(), 2 * world.size(), {16, 16});
  auto alone = config;
  alone.parallel.pp = 1;
  alone.pipeline.schedule = "1f1b";
  config.pipeline.vocab_parallel = true;
  engine::Trainer<device::Fp64> trainer(config, world), expected(alone, self);
  layout::Range const text{3, 3 + 16 * 5 + 7};
  EXPECT_NEAR(trainer.score(text).loss, expected.score(text).loss, 1e-12);
  EXPECT_EQ(trainer.score(text).windows, 5);
  EXPECT_NEAR(trainer.evaluate(1), expected.evaluate(1), 1e-12);
}

// Dropout is of training alone.
TEST(Evaluation, DropsNothing) {
  auto world = comm::Communicator::world();
  auto config = make_config(*schedule::find_generator("1f1b"), world.size(), world.size(), {16, 16});
  engine::Trainer<device::Fp64> plain(config, world);
  config.model.dropout = 0.5;
  engine::Trainer<device::Fp64> dropping(config, world);
  EXPECT_EQ(dropping.evaluate(1), plain.evaluate(1));
  EXPECT_NE(dropping.step().loss, plain.step().loss);
}

// What p3d eval says of the windows that a run reads is what the run says, with documents that do not see each other
// too; and shorter windows of learned positions are those of a model with shorter sequences.
TEST(Evaluation, ScoresAreThoseOfTheSameWindows) {
  auto world = comm::Communicator::world();
  auto const* const g = schedule::find_generator("1f1b");
  auto config = make_config(*g, world.size(), world.size(), {16, 16});
  auto shorter = config;
  shorter.model.seq_len = 10;
  for (bool const pack : {false, true}) {
    config.data.pack = pack;
    config.data.eod_token = pack ? 10 : -1;  // documents are lines
    engine::Trainer<device::Fp64> trainer(config, world);
    std::int64_t const few = 3 * config.batch.global;
    std::vector<std::int64_t> read;
    auto const score =
        trainer.score_validation({.window = 0, .most = few, .progress = [&](std::int64_t done, std::int64_t of) {
                                    EXPECT_EQ(of, few);
                                    read.push_back(done);
                                  }});
    EXPECT_EQ(score.windows, few);
    EXPECT_EQ(read, (std::vector{few / 3, 2 * few / 3, few}));
    EXPECT_NEAR(score.loss, trainer.evaluate(3), 1e-12);
    auto const all = trainer.score_validation();
    EXPECT_EQ(all.windows, trainer.sampler().num_eval_windows());
    EXPECT_NEAR(all.loss, trainer.score(trainer.sampler().held_out()).loss, 1e-12);
    if (pack) continue;
    layout::Range const text{7, 7 + 10 * 21 + 3};
    auto const cut = trainer.score(std::vector{text}, nullptr, {.window = 10, .most = 0, .progress = {}});
    auto const expected = engine::Trainer<device::Fp64>(shorter, world).score(text);
    EXPECT_EQ(cut.windows, 21);
    EXPECT_EQ(expected.windows, 21);
    EXPECT_NEAR(cut.loss, expected.loss, 1e-12);
  }
}

// The run that hung: 4 ranks of looped_bfs with 2 stages each, 15 KiB messages.
TEST(Evaluation, LoopedBfsOnFourRanks) {
  auto world = comm::Communicator::world();
  if (world.size() != 4) GTEST_SKIP() << "for 4 ranks";
  for (int m : {8, 12}) {
    engine::Trainer<device::Fp64> trainer(make_config(*schedule::find_generator("looped_bfs"), 4, m, {48, 40}), world);
    double const before = trainer.evaluate(1);
    trainer.step();
    EXPECT_NE(trainer.evaluate(1), before);
  }
}

}  // namespace
