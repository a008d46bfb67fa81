// SPDX-License-Identifier: Apache-2.0
// Gradients that are late by one update (optimizer.delay = 1, PipeDream-2BW): every layout has the losses of a ring of
// versions, w(t+1) = w(t) - lr u(gradient of batch t at w(t-1)), that is written out in late_gradients.hpp.

#include <p3d/engine/trainer.hpp>
#include <p3d/optim/lr_schedule.hpp>
#include <p3d/optim/optimizer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "late_gradients.hpp"

namespace {

using namespace p3d;
using namespace test::late_gradients;
using test::Keys;

/// Layouts whose pipeline does not empty between steps, on so many ranks.
std::vector<Keys> streams(int ranks) {
  static std::map<int, std::vector<std::string>> const by_ranks{
      {1, {}},
      {2,
       {"parallel.pp=2 pipeline.schedule=1f1b",
        "parallel.pp=2 batch.micro=4 pipeline.lookahead=0 model.tied_embeddings=true",
        "parallel.pp=2 pipeline.schedule=zb_h1 memory.recompute=full",
        "parallel.pp=2 pipeline.schedule=interleaved_1f1b pipeline.virtual_stages=2 model.tied_embeddings=true",
        "parallel.pp=2 pipeline.schedule=v_min"}},
      {4,
       {"parallel.pp=4 pipeline.schedule=1f1b model.tied_embeddings=true",
        "parallel.pp=4 pipeline.schedule=zb_h1 batch.micro=2",
        "parallel.pp=2 parallel.tp=2 parallel.sequence=true model.tied_embeddings=true",
        "parallel.pp=2 parallel.dp=2 pipeline.schedule=interleaved_1f1b pipeline.virtual_stages=2",
        "parallel.pp=2 parallel.cp=2 pipeline.schedule=zb_h1 model.tied_embeddings=true"}}};
  std::vector<Keys> out;
  for (auto const& text : by_ranks.at(ranks))
    out.push_back(
        test::joined({Keys{late, "pipeline.flush=never", "model.tied_embeddings=false"}, test::words_of(text)}));
  return out;
}

std::vector<Keys> layouts(int ranks) {
  static std::map<int, std::vector<std::string>> const by_ranks{
      {1, {"parallel.dp=1", "memory.recompute=full memory.offload_optimizer=disk memory.offload_parameters=disk"}},
      {2,
       {"parallel.pp=2 pipeline.schedule=1f1b", "parallel.pp=2 pipeline.schedule=zb_h1",
        "parallel.pp=2 pipeline.schedule=interleaved_1f1b pipeline.virtual_stages=2",
        "parallel.pp=2 pipeline.schedule=zb_v pipeline.vocab_parallel=true", "parallel.dp=2 memory.shard=optimizer",
        "parallel.dp=2 memory.shard=gradients memory.reduce=microbatch", "parallel.tp=2 parallel.sequence=true",
        "parallel.cp=2", "parallel.dp=2 memory.shard=parameters memory.offload_optimizer=disk"}},
      {4,
       {"parallel.pp=4 pipeline.schedule=1f1b",
        "parallel.pp=2 parallel.tp=2 parallel.sequence=true pipeline.schedule=zb_h1",
        "parallel.pp=2 parallel.dp=2 pipeline.schedule=interleaved_1f1b memory.shard=optimizer",
        "parallel.dp=4 memory.shard=parameters memory.gather=microbatch",
        "parallel.dp=2 parallel.tp=2 parallel.sequence=true",
        "parallel.dp=4 memory.shard=optimizer memory.shard_over=2"}}};
  std::vector<Keys> out;
  for (auto const& text : by_ranks.at(ranks)) out.push_back(test::words_of(text));
  return out;
}

class Delay : public testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
};

TEST_F(Delay, LossesAreThoseOfARingOfVersions) {
  for (Keys const& model :
       {Keys{"model.tied_embeddings=true"}, Keys{"model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=16"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(model, " ")));
    auto const expected = ring(model, {late}), at_once = ring(model, {});
    auto const near = [](Numbers const& a, Numbers const& b) {
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t t = 0; t < a.size(); ++t) EXPECT_NEAR(a[t], b[t], 1e-12 * b[t]) << "update " << t;
    };
    EXPECT_GT(std::fabs(expected.back() - at_once.back()), 1e-4) << "the delay changes the losses";
    for (auto layout : layouts(world.size())) {
      SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
      auto keys = test::joined({model, layout});
      if (model.size() > 1 && layout[0] == "parallel.dp=4") keys.push_back("parallel.ep=2");
      near(losses<device::Fp64>(test::joined({keys, Keys{late}}), world, updates), expected);
    }
    near(losses<device::Fp64>(test::joined({model, layouts(world.size())[0]}), world, updates), at_once);
  }
}

TEST_F(Delay, FirstUpdateIsThatOfNoDelay) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    engine::Trainer<device::Fp64> delayed(make_config(test::joined({layout, Keys{late}}), world.size()), world),
        plain(make_config(layout, world.size()), world);
    EXPECT_EQ(delayed.step().loss, plain.step().loss);
    for (auto const& spec : plain.plan().table.specs())
      EXPECT_EQ(delayed.inspection().gather_value(spec.name), plain.inspection().gather_value(spec.name)) << spec.name;
    EXPECT_EQ(delayed.evaluate(1), plain.evaluate(1));
    // The second gradient is taken at the first weights in one of them.
    EXPECT_NE(delayed.step().loss, plain.step().loss);
  }
}

TEST_F(Delay, WithoutARateNothingMoves) {
  Keys const still{"optimizer.lr=0", "optimizer.min_lr=0"};
  auto const layout = layouts(world.size()).front();
  EXPECT_EQ(losses<device::Fp32>(test::joined({layout, still, Keys{"run.precision=fp32", late}}), world, 4),
            losses<device::Fp32>(test::joined({layout, still, Keys{"run.precision=fp32"}}), world, 4));
}

// Evaluation, samples and scores read the newest weights, and change nothing of what follows.
TEST_F(Delay, AnythingMayComeBetweenSteps) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const config = make_config(test::joined({layout, Keys{late}}), world.size());
    engine::Trainer<device::Fp64> quiet(config, world), asked(config, world);
    // A training without delay that is given the newest weights.
    engine::Trainer<device::Fp64> other(make_config(layout, world.size()), world);
    for (int s = 0; s < 6; ++s) {
      EXPECT_EQ(asked.step().loss, quiet.step().loss) << "step " << s;
      auto const newest = state(asked);
      if (s % 2 == 0) {
        give_newest(other, by_name(asked));
        EXPECT_EQ(asked.evaluate(2), other.evaluate(2)) << "step " << s;
        EXPECT_EQ(asked.score(layout::Range{0, 64}).loss, other.score(layout::Range{0, 64}).loss);
        EXPECT_EQ(test::greedy(asked, "The", 2), test::greedy(other, "The", 2));
        for (auto const& spec : asked.plan().table.specs())
          EXPECT_EQ(asked.inspection().gather_value(spec.name), other.inspection().gather_value(spec.name));
      }
      if (s == 3) {
        EXPECT_EQ(state(asked), newest);
      }
    }
    EXPECT_EQ(state(asked), state(quiet));
  }
}

// Both versions are state: a training that is given the arrays of another one goes on with its bits.
TEST_F(Delay, GoesOnFromItsState) {
  auto const goes_on = [&]<class P>(P, Keys const& more) {
    for (auto const& layout : layouts(world.size())) {
      bool const offloads = layout.back().find("offload") != std::string::npos;
      if (offloads && more.back() == "precision.moments=bf16") continue;  // offloaded moments are wide
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(layout, " "), fmt::join(more, " ")));
      auto const config = make_config(test::joined({layout, more, Keys{late}}), world.size());
      engine::Trainer<P> first(config, world), second(config, world);
      for (int s = 0; s < 3; ++s) first.step();
      auto const saved = state(first);
      restore(second, config::state_of(config.optimizer_with_versions()).arrays, saved);
      second.set_steps_done(3);
      EXPECT_EQ(state(second), saved);
      for (int s = 0; s < 3; ++s) EXPECT_EQ(second.step().loss, first.step().loss);
      EXPECT_EQ(state(second), state(first));
    }
  };
  goes_on(device::Fp32(), {"run.precision=fp32", "optimizer.type=sgd", "optimizer.lr=0.5"});
#if P3D_16BIT
  goes_on(device::Bf16(), {"run.precision=bf16"});
  goes_on(device::Bf16(), {"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"});
#endif
}

#if P3D_16BIT
// The state of a training without delay is a start: there is one version, which layers read with the same rounding.
TEST_F(Delay, GoesOnFromOneVersion) {
  for (auto const& layout : layouts(world.size())) {
    if (layout.back().find("offload") != std::string::npos) continue;  // offloaded moments are wide
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const keys = test::joined(
        {layout, Keys{"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"}});
    auto const config = make_config(keys, world.size());
    engine::Trainer<device::Bf16> plain(config, world);
    engine::Trainer<device::Bf16> delayed(make_config(test::joined({keys, Keys{late}}), world.size()), world);
    for (int s = 0; s < 3; ++s) plain.step();
    restore(delayed, config::state_of(config.optimizer_with_versions()).arrays, state(plain));
    delayed.set_steps_done(3);
    EXPECT_EQ(delayed.step().loss, plain.step().loss);
    EXPECT_NE(delayed.step().loss, plain.step().loss);
  }
}

// An update that is skipped makes no version: the next gradient is taken at the newest weights that there are.
TEST_F(Delay, SkippedUpdateMakesNoVersion) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    Keys const half{"run.precision=fp16", "precision.loss_scale_initial=256", "optimizer.grad_clip=0"};
    auto const config = make_config(test::joined({layout, half, Keys{late}}), world.size());
    engine::Trainer<device::Fp16> trainer(config, world);
    engine::Trainer<device::Fp16> other(make_config(test::joined({layout, half}), world.size()), world);
    for (int s = 0; s < 3; ++s) trainer.step();
    trainer.inspection().spoil_gradient("layers.1.mlp.up.weight");
    EXPECT_TRUE(trainer.step().skipped());
    auto const saved = by_name(trainer);
    for (auto const& [name, arrays] : saved) {
      if (!name.starts_with("previous_weights/")) continue;
      EXPECT_EQ(arrays, saved.at("parameters" + name.substr(std::string("previous_weights").size()))) << name;
    }
    // The next loss is that of these weights.
    give_newest(other, saved);
    other.set_steps_done(4);
    EXPECT_EQ(trainer.step().loss, other.step().loss);
  }
}
// The older weights are as wide as master weights are, whatever the moments are.
TEST_F(Delay, WeightsStayWide) {
  auto const keys = test::joined({layouts(world.size()).front(), Keys{"run.precision=bf16", "precision.moments=bf16",
                                                                      "model.hidden=128", "model.ffn=512", late}});
  engine::Trainer<device::Bf16> trainer(make_config(keys, world.size()), world);
  trainer.step();
  EXPECT_EQ(trainer.memory_in_use().optimizer, trainer.plan().memory_of(trainer.mesh().coordinate("pp")).optimizer);
}
#endif

TEST_F(Delay, WithoutAFlushLossesAreThoseOfTheRing) {
  std::map<bool, Numbers> const of_rings{{false, ring({"model.tied_embeddings=false"}, {late})},
                                         {true, ring({"model.tied_embeddings=true"}, {late})}};
  for (auto const& layout : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const& expected = of_rings.at(make_config(layout, world.size()).model.tied_embeddings);
    engine::Trainer<device::Fp64> trainer(make_config(layout, world.size()), world);
    ASSERT_TRUE(trainer.plan().stream);
    auto const results = advance(trainer, updates);
    ASSERT_EQ(std::ssize(results), updates);
    for (std::size_t t = 0; t < results.size(); ++t) EXPECT_NEAR(results[t].loss, expected[t], 1e-12 * expected[t]);
  }
}

// A flush changes no bit, wherever it comes.
TEST_F(Delay, FlushChangesNoBit) {
  auto const compare = [&]<class P>(P, Keys const& more) {
    auto all = streams(world.size());
    // An odd number of microbatches: their slots change from step to step.
    if (world.size() == 2) all.push_back(test::joined({all.back(), Keys{"batch.global=5"}}));
    for (auto const& layout : all) {
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(layout, " "), fmt::join(more, " ")));
      expect_flush_changes_no_bit<P>(make_config(test::joined({layout, more}), world.size()), world, 9, 4);
    }
  };
  compare(device::Fp32(), {"run.precision=fp32", "optimizer.grad_clip=0.8"});
  compare(device::Fp32(), {"run.precision=fp32", "optimizer.type=sgd", "optimizer.lr=0.5", "optimizer.grad_clip=0"});
#if P3D_16BIT
  compare(device::Bf16(), {"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"});
  compare(device::Bf16(), {"run.precision=bf16", "precision.pipeline=bf16", "model.dropout=0.1"});
#endif
}

// What interrupts a stream has the forwards of the next step done again.
TEST_F(Delay, AStreamMayBeInterrupted) {
  for (auto const& layout : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const config = make_config(layout, world.size());
    engine::Trainer<device::Fp64> interrupted(config, world), always(config, world);
    std::vector<engine::StepResult> results;
    auto const expected = flushed(always, 3);
    auto const after_three = state(always);
    double const score = always.evaluate(1);
    for (int s = 0; s < 3; ++s)
      for (auto const& r : interrupted.advance(s + 1, true)) results.push_back(r);
    EXPECT_EQ(std::ssize(results), 2);
    EXPECT_TRUE(state(interrupted) == after_three) << "a checkpoint leaves the stream alone";
    for (auto const& r : interrupted.advance(4, true)) results.push_back(r);
    expect_same(results, expected);
    auto const fourth = flushed(always, 1);
    double const next_score = always.evaluate(1);
    EXPECT_EQ(interrupted.evaluate(1), next_score);
    EXPECT_NE(score, next_score);
    // The result that was late comes with the next ones.
    auto const late_ones = advance(interrupted, 2);
    ASSERT_EQ(late_ones.size(), 3U);
    expect_same({late_ones[0]}, fourth);
    expect_same({late_ones[1], late_ones[2]}, flushed(always, 2));
    EXPECT_TRUE(state(interrupted) == state(always));
    // One step alone has its own result.
    EXPECT_TRUE(interrupted.advance(7, true).empty());
    EXPECT_EQ(interrupted.step(8).step, 8);
    EXPECT_EQ(interrupted.advance(9, false).front().step, 7);
  }
}

TEST_F(Delay, AStreamFindsWhatIsNotFinite) {
  for (auto const& layout : streams(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    engine::Trainer<device::Fp64> trainer(make_config(layout, world.size()), world);
    for (int s = 0; s < 2; ++s) trainer.advance(0, true);
    trainer.inspection().spoil_gradient("layers.1.mlp.up.weight");
    EXPECT_NO_THROW(trainer.advance(0, true)) << "its norm is not known yet";
    try {
      trainer.advance(0, true);
      FAIL() << "the norm of step 3 is not finite";
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::not_finite);
      EXPECT_NE(e.text().found.find("at step 3"), std::string::npos) << e.text().found;
      EXPECT_NE(e.text().found.find("the gradient of layers.1.mlp.up.weight"), std::string::npos) << e.text().found;
    }
    EXPECT_NO_THROW(trainer.advance(0, true)) << "the microbatches that had begun were given up";
  }
}

TEST_F(Delay, AStreamTakesThePredictedMemory) {
  auto const compare = [&]<class P>(P, std::string const& precision) {
    for (auto const& layout : streams(world.size())) {
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(layout, " "), precision));
      Keys const wide{"run.precision=" + precision, "model.hidden=128", "model.ffn=512"};
      engine::Trainer<P> trainer(make_config(test::joined({layout, wide}), world.size()), world);
      advance(trainer, 3);
      auto predicted = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
      predicted.panels = 0;  // GEMMs in 16 bits have them, by thread
      test::expect_memory(trainer.memory_in_use(), predicted);
    }
  };
  compare(device::Fp32(), "fp32");
#if P3D_16BIT
  compare(device::Bf16(), "bf16");
#endif
}

TEST_F(Delay, MemoryIsWhatWasPredicted) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto const keys = test::joined({layout, Keys{"run.precision=fp32", "model.hidden=128", "model.ffn=512"}});
    engine::Trainer<device::Fp32> trainer(make_config(test::joined({keys, Keys{late}}), world.size()), world);
    trainer.step();
    int const here = trainer.mesh().coordinate("pp");
    auto const predicted = trainer.plan().memory_of(here);
    test::expect_memory(trainer.memory_in_use(), predicted);
    // Where the optimizer's two moments had 2 numbers, there are 3.
    auto const config = make_config(keys, world.size());
    if (config.memory.offloads_parameters()) continue;  // values are offloaded with the state
    auto const state = [&](plan::MemoryPrediction const& m) {
      return config.memory.offload_optimizer != config::OffloadTo::none ? m.offloaded : m.optimizer;
    };
    EXPECT_EQ(2 * state(predicted), 3 * state(engine::make_run_plan(config).memory_of(here)));
  }
}

}  // namespace
