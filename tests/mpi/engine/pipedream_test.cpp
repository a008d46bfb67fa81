// SPDX-License-Identifier: Apache-2.0
// Gradients that are late by several updates, and by other numbers from layer to layer (pipeline.delays; PipeDream,
// Narayanan et al., SOSP 2019): every layout has the losses of a ring of versions in which layer i reads the weights
// before its last d_i updates, and a pipeline that does not empty between steps has the bits of one that does.

#include <p3d/base/error.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "late_gradients.hpp"

namespace {

using namespace p3d;
using namespace test::late_gradients;
using test::Keys;

Keys const untied{"model.tied_embeddings=false"};

/// Keys of layouts on so many ranks.
std::vector<Keys> of_ranks(std::map<int, std::vector<std::string>> const& all, int ranks) {
  std::vector<Keys> out;
  for (auto const& text : all.at(ranks)) out.push_back(test::words_of(text));
  return out;
}

/// Layouts that end steps with a flush.
std::vector<Keys> layouts(int ranks) {
  return of_ranks(
      {{1, {"parallel.dp=1", "memory.recompute=full memory.offload_optimizer=disk memory.offload_parameters=disk"}},
       {2,
        {"parallel.pp=2 pipeline.schedule=zb_h1",
         "parallel.pp=2 pipeline.schedule=interleaved_1f1b pipeline.virtual_stages=2",
         "parallel.pp=2 pipeline.schedule=zb_v pipeline.vocab_parallel=true", "parallel.dp=2 memory.shard=optimizer",
         "parallel.dp=2 memory.shard=gradients memory.reduce=microbatch", "parallel.tp=2 parallel.sequence=true",
         "parallel.dp=2 memory.shard=parameters memory.offload_optimizer=disk"}},
       {4,
        {"parallel.pp=4 pipeline.schedule=1f1b",
         "parallel.pp=2 parallel.tp=2 parallel.sequence=true pipeline.schedule=zb_h1",
         "parallel.dp=4 memory.shard=parameters memory.gather=microbatch", "parallel.dp=2 parallel.cp=2"}}},
      ranks);
}

/// Layouts whose steps follow each other without a flush, with the delays that they have.
std::vector<std::pair<Keys, std::vector<int>>> streams(int ranks) {
  static std::map<int, std::vector<std::pair<std::string, std::vector<int>>>> const all{
      {1, {}},
      {2,
       {{"parallel.pp=2 batch.micro=8", {1, 1, 0, 0}},
        {"parallel.pp=2 batch.micro=2 memory.recompute=full", {1, 1, 0, 0}},
        {"parallel.pp=2 batch.micro=8 pipeline.lookahead=0 pipeline.layers_per_stage=[1,3]", {1, 0, 0, 0}}}},
      {4,
       {{"parallel.pp=4 batch.micro=8", {3, 2, 1, 0}},
        {"parallel.pp=4 batch.micro=4", {2, 1, 1, 0}},
        {"parallel.pp=4 batch.micro=1 pipeline.p2p=batched", {1, 1, 1, 0}},
        {"parallel.pp=2 parallel.dp=2 batch.micro=4", {1, 1, 0, 0}},
        {"parallel.pp=2 parallel.tp=2 parallel.sequence=true batch.micro=4", {1, 1, 0, 0}}}}};
  std::vector<std::pair<Keys, std::vector<int>>> out;
  for (auto const& [text, delays] : all.at(ranks))
    out.emplace_back(
        test::joined({untied, Keys{"pipeline.schedule=pipedream", "pipeline.flush=never", "optimizer.grad_clip=0"},
                      test::words_of(text)}),
        delays);
  return out;
}

Keys delays_key(std::vector<int> const& delays) {
  return {fmt::format("pipeline.delays=[{}]", fmt::join(delays, ","))};
}

class PipeDream : public testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
};

void expect_near(Numbers const& a, Numbers const& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t t = 0; t < a.size(); ++t) EXPECT_NEAR(a[t], b[t], 1e-12 * b[t]) << "update " << t;
}

TEST_F(PipeDream, LossesAreThoseOfARingOfVersions) {
  std::vector<Numbers> all;
  for (Keys const& delays :
       {Keys{"pipeline.delays=[3,2,1,0]"}, Keys{"pipeline.delays=[0,2]"}, Keys{"optimizer.delay=3"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(delays, " ")));
    auto const& expected = all.emplace_back(ring(untied, delays));
    for (auto const& layout : layouts(world.size())) {
      SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
      expect_near(losses<device::Fp64>(test::joined({untied, layout, delays}), world, updates), expected);
    }
  }
  EXPECT_GT(std::fabs(all[0].back() - all[1].back()), 1e-5) << "delays change the losses";
  EXPECT_GT(std::fabs(all[0].back() - all[2].back()), 1e-5);
}

// What experts were chosen changes the newest biases of the router, which a layer whose gradients are not late reads
// next.
TEST_F(PipeDream, BiasesOfExpertsAreVersionsToo) {
  Keys const model{"model.moe.experts=4",   "model.moe.top_k=2",
                   "model.moe.ffn=16",      "model.moe.bias_update_rate=0.05",
                   "pipeline.delays=[2,0]", "model.tied_embeddings=false"};
  auto const expected = losses<device::Fp64>(model, comm::Communicator::self(), 12);
  for (auto const& layout : layouts(world.size())) {
    if (layout.back().find("offload") != std::string::npos) continue;  // the input refuses it
    expect_near(losses<device::Fp64>(test::joined({model, layout}), world, 12), expected);
  }
  auto still = model;
  still[3] = "model.moe.bias_update_rate=0";
  still.push_back("model.moe.choice_bias=true");
  auto const without = losses<device::Fp64>(still, comm::Communicator::self(), 12);
  EXPECT_EQ(without[0], expected[0]);
  EXPECT_NE(without[1], expected[1]) << "layers that are not late read the biases that the first step has changed";
}

TEST_F(PipeDream, APipelineHasTheLossesOfTheRing) {
  std::map<std::vector<int>, Numbers> rings;
  for (auto const& [layout, delays] : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    Keys const rate{"optimizer.lr=3e-3"};  // rounding grows with it, the faster the later gradients are
    auto const config = make_config(test::joined({layout, rate}), world.size());
    for (int l = 0; l < 4; ++l) EXPECT_EQ(config.delay_of(l), delays[static_cast<std::size_t>(l)]);
    auto& expected = rings[delays];
    if (expected.empty())
      expected = ring(test::joined({untied, rate, Keys{"optimizer.grad_clip=0"}}), delays_key(delays));
    engine::Trainer<device::Fp64> trainer(config, world);
    ASSERT_TRUE(trainer.plan().stream);
    auto const results = advance(trainer, updates);
    ASSERT_EQ(std::ssize(results), updates);
    for (std::size_t t = 0; t < results.size(); ++t) EXPECT_NEAR(results[t].loss, expected[t], 1e-12 * expected[t]);
  }
}

// One rank that is given the delays of a pipeline has its losses, bit for bit where no sum is over ranks.
TEST_F(PipeDream, OneRankEmulatesAPipeline) {
  for (auto const& [layout, delays] : streams(world.size())) {
    auto const config = make_config(layout, world.size());
    if (config.parallel.pp != world.size()) continue;
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const micro = fmt::format("batch.micro={}", config.batch.micro);
    auto const alone =
        losses<device::Fp64>(test::joined({untied, Keys{"optimizer.grad_clip=0", micro}, delays_key(delays)}),
                             comm::Communicator::self(), 12);
    engine::Trainer<device::Fp64> trainer(config, world);
    auto const results = advance(trainer, 12);
    for (std::size_t t = 0; t < results.size(); ++t) EXPECT_EQ(results[t].loss, alone[t]) << "update " << t;
  }
}

// A flush changes no bit, wherever it comes.
TEST_F(PipeDream, FlushChangesNoBit) {
  auto const compare = [&]<class P>(P, Keys const& more) {
    for (auto const& [layout, delays] : streams(world.size())) {
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(layout, " "), fmt::join(more, " ")));
      expect_flush_changes_no_bit<P>(make_config(test::joined({layout, more}), world.size()), world, 11, 6);
    }
  };
  compare(device::Fp32(), {"run.precision=fp32"});
  compare(device::Fp32(), {"run.precision=fp32", "optimizer.type=sgd", "optimizer.lr=0.5"});
#if P3D_16BIT
  compare(device::Bf16(), {"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"});
  compare(device::Bf16(), {"run.precision=bf16", "precision.pipeline=bf16", "model.dropout=0.1"});
#endif
}

TEST_F(PipeDream, APipelineMayBeInterrupted) {
  for (auto const& [layout, delays] : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const config = make_config(layout, world.size());
    engine::Trainer<device::Fp64> interrupted(config, world), always(config, world);
    std::vector<engine::StepResult> results;
    auto const take = [&](std::vector<engine::StepResult> const& some) {
      results.insert(results.end(), some.begin(), some.end());
    };
    auto expected = flushed(always, 3);
    for (int s = 0; s < 3; ++s) take(interrupted.advance(s + 1, true));
    EXPECT_TRUE(state(interrupted) == state(always)) << "a checkpoint leaves what has begun alone";
    take(interrupted.advance(4, true));
    EXPECT_EQ(results.size(), 3U) << "and waits for all sums";
    expect_same(results, expected);
    results.clear();
    expected = flushed(always, 1);
    EXPECT_EQ(interrupted.evaluate(1), always.evaluate(1));
    for (auto const& r : flushed(always, 3)) expected.push_back(r);
    take(advance(interrupted, 3));
    expect_same(results, expected);
    EXPECT_TRUE(state(interrupted) == state(always));
    // One step alone has its own result.
    EXPECT_TRUE(interrupted.advance(8, true).empty());
    EXPECT_EQ(interrupted.step(9).step, 9);
    EXPECT_EQ(interrupted.advance(10, false).front().step, 8);
  }
}

TEST_F(PipeDream, FindsWhatIsNotFinite) {
  for (auto const& [layout, delays] : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    engine::Trainer<device::Fp64> trainer(make_config(layout, world.size()), world);
    int const late = trainer.plan().results_late(trainer.config());
    trainer.advance(0, true);
    trainer.inspection().spoil_gradient("layers.1.mlp.up.weight");
    for (int s = 0; s < late; ++s) EXPECT_NO_THROW(trainer.advance(0, true)) << "its norm is not known yet";
    try {
      trainer.advance(0, true);
      FAIL() << "the norm of step 2 is not finite";
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::not_finite);
      EXPECT_NE(e.text().found.find("at step 2"), std::string::npos) << e.text().found;
      EXPECT_NE(e.text().found.find("found at step"), std::string::npos) << e.text().found;
    }
    EXPECT_NO_THROW(trainer.advance(0, true)) << "the microbatches that had begun were given up";
    EXPECT_THROW(trainer.drain(), base::Error) << "updates had been made with what is not finite";
  }
}

// A late gradient that is not finite may leave the losses of the next steps finite: their results do not come all the
// same, so that nobody takes the weights for good.
TEST_F(PipeDream, NoResultComesBehindAStepThatFailed) {
  for (auto const& [layout, delays] : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    engine::Trainer<device::Fp64> trainer(make_config(layout, world.size()), world);
    trainer.inspection().spoil_gradient("layers.0.mlp.up.weight");
    trainer.advance(0, true);
    EXPECT_NO_THROW(trainer.advance(0, true));
    EXPECT_THROW(trainer.drain(), base::Error);
    EXPECT_TRUE(trainer.late_results().empty());
  }
}

TEST_F(PipeDream, TakesThePredictedMemory) {
  auto const compare = [&]<class P>(P, std::string const& precision) {
    for (auto const& [layout, delays] : streams(world.size())) {
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(layout, " "), precision));
      Keys const wide{"run.precision=" + precision, "model.hidden=128", "model.ffn=512"};
      auto const config = make_config(test::joined({layout, wide}), world.size());
      engine::Trainer<P> trainer(config, world);
      advance(trainer, 3);
      int const here = trainer.mesh().coordinate("pp");
      auto predicted = trainer.plan().memory_of(here);
      predicted.panels = 0;  // GEMMs in 16 bits have them, by thread
      test::expect_memory(trainer.memory_in_use(), predicted);
      // Without delays there are two moments, and master weights in 16 bits; each update of delay is one more copy of
      // the weights in their type, and in 16 bits one more rounded.
      auto const plain = engine::make_run_plan(make_config(
          test::joined({layout, wide, Keys{"pipeline.schedule=1f1b", "pipeline.flush=auto"}}), world.size()));
      auto const& without = plain.memory_of(here);
      auto const numbers = without.optimizer / (precision == "bf16" ? 12 : 8);
      EXPECT_EQ(predicted.optimizer, without.optimizer + 4 * config.latest_delay() * numbers);
      auto const ahead = precision == "bf16" ? trainer.plan().stream->ahead.at(static_cast<std::size_t>(here)) : 0;
      EXPECT_EQ(predicted.params, (1 + ahead) * without.params);
      EXPECT_EQ(predicted.grads, without.grads);
    }
  };
  compare(device::Fp32(), "fp32");
#if P3D_16BIT
  compare(device::Bf16(), "bf16");
#endif
}

// All versions are state: a training that is given the arrays of another one goes on with its bits.
TEST_F(PipeDream, GoesOnFromItsState) {
  auto const goes_on = [&]<class P>(P, Keys const& more) {
    for (auto const& layout : layouts(world.size())) {
      bool const offloads = layout.back().find("offload") != std::string::npos;
      if (offloads && more.back() == "precision.moments=bf16") continue;  // offloaded moments are wide
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(layout, " "), fmt::join(more, " ")));
      auto const config =
          make_config(test::joined({untied, layout, more, Keys{"pipeline.delays=[3,2,1,0]"}}), world.size());
      engine::Trainer<P> first(config, world), second(config, world);
      for (int s = 0; s < 4; ++s) first.step();
      auto const saved = state(first);
      restore(second, config::state_of(config.optimizer_with_versions()).arrays, saved);
      second.set_steps_done(4);
      EXPECT_TRUE(state(second) == saved);
      for (int s = 0; s < 4; ++s) EXPECT_EQ(second.step().loss, first.step().loss);
      EXPECT_TRUE(state(second) == state(first));
    }
  };
  goes_on(device::Fp32(), {"run.precision=fp32", "optimizer.type=sgd", "optimizer.lr=0.5"});
#if P3D_16BIT
  goes_on(device::Bf16(), {"run.precision=bf16"});
  goes_on(device::Bf16(), {"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"});
#endif
}

#if P3D_16BIT
// Where a run begins with one version, at an update that is not the first, the older versions have its number for some
// updates: rounding at random goes by it, and a file keeps it.
TEST_F(PipeDream, GoesOnSoonAfterAStartFromOneVersion) {
  for (auto const& layout : layouts(world.size())) {
    if (layout.back().find("offload") != std::string::npos) continue;  // offloaded moments are wide
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const keys = test::joined(
        {untied, layout, Keys{"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"}});
    auto const config = make_config(keys, world.size());
    auto const late_config = make_config(test::joined({keys, Keys{"pipeline.delays=[3,2,1,0]"}}), world.size());
    auto const start = [&] {  // three trainings at a time have more groups than the node's shared memory has room for
      engine::Trainer<device::Bf16> plain(config, world);
      for (int s = 0; s < 3; ++s) plain.step();
      return state(plain);
    }();
    engine::Trainer<device::Bf16> first(late_config, world), second(late_config, world);
    restore(first, config::state_of(config.optimizer_with_versions()).arrays, start);
    first.set_steps_done(3);
    first.step();
    for (std::int64_t made = 1; made <= 3; ++made) {
      auto const saved = state(first);
      EXPECT_EQ(first.versions_made(), made < 3 ? made : -1);
      restore(second, config::state_of(late_config.optimizer_with_versions()).arrays, saved);
      second.set_versions_made(first.versions_made());
      second.set_steps_done(3 + made);
      EXPECT_EQ(second.step().loss, first.step().loss);
      EXPECT_TRUE(state(second) == state(first));
    }
  }
}

// An update that is skipped makes no version: the newest weights stay, and the others grow older.
TEST_F(PipeDream, SkippedUpdateMakesNoVersion) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const config = make_config(test::joined({untied, layout,
                                                  Keys{"run.precision=fp16", "precision.loss_scale_initial=256",
                                                       "optimizer.grad_clip=0", "optimizer.delay=2"}}),
                                    world.size());
    engine::Trainer<device::Fp16> trainer(config, world);
    for (int s = 0; s < 3; ++s) trainer.step();
    auto const before = by_name(trainer);
    trainer.inspection().spoil_gradient("layers.1.mlp.up.weight");
    EXPECT_TRUE(trainer.step().skipped());
    for (auto const& [name, arrays] : by_name(trainer)) {
      auto const parameter = name.substr(name.find('/'));
      if (name.starts_with("previous_weights/")) {
        EXPECT_EQ(arrays, before.at("parameters" + parameter)) << name;
      }
      if (name.starts_with("previous_weights.2/")) {
        EXPECT_EQ(arrays, before.at("previous_weights" + parameter)) << name;
      }
      if (name.starts_with("parameters/")) {
        EXPECT_EQ(arrays, before.at(name)) << name;
      }
    }
  }
}
#endif

}  // namespace
