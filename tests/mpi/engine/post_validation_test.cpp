// SPDX-License-Identifier: Apache-2.0
// Updates before the norm is known (optimizer.post_validation): every bit is that of a training that waits, whether an
// update stands or is taken back, and whatever comes between two steps.

#include <p3d/base/error.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

constexpr char const* on = "optimizer.post_validation=true";

config::Config make_config(Words const& more, int ranks) {
  Words const own{
      "batch.micro=1",      "batch.global=24", "model.dropout=0.1", "optimizer.lr=1e-1",        "comm.bucket_mb=0.002",
      "run.precision=fp32", "run.seed=3",      "run.steps=40",      "optimizer.warmup_steps=2", test::licence_text()};
  return test::config_of(test::joined({test::tiny_model(8), own, more}), ranks);
}

Words with(Words words, Words const& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

template <class P>
std::vector<double> train(Words const& words, comm::Communicator const& world,
                          engine::PostValidation* count = nullptr) {
  engine::Trainer<P> trainer(make_config(words, world.size()), world);
  auto out = test::train(trainer, 10);
  if (count)
    *count = trainer.post_validation();
  else
    EXPECT_EQ(trainer.post_validation().tried_out, 0);
  return out;
}

/// Trainings that wait for the norm: without a clip, and with one between the norms of two steps of which the second
/// one's is much larger, so that an update is tried out and taken back.
struct Waiting {
  std::vector<double> free, clipped;
  std::string clip;
};

/// Clipped steps before those two hardly change the later ones (AdamW knows no scale), but how much they do depends on
/// the processor's rounding: so the training with the clip has to show such steps too, or another pair is taken.
template <class P>
Waiting wait(Words const& words, comm::Communicator const& world) {
  Waiting out{train<P>(with(words, {"optimizer.grad_clip=0"}), world), {}, {}};
  auto const norms_of = [](std::vector<double> const& numbers) {
    std::vector<double> norms;  // of steps 2 to 9: test::train() evaluates behind step 1
    for (std::size_t s = 2; s < 10; ++s) norms.push_back(numbers[2 * s + 2]);
    return norms;
  };
  auto const free = norms_of(out.free);
  std::vector<std::pair<double, double>> rises;  // how much a norm rises, and a clip between
  for (std::size_t s = 0; s + 1 < free.size(); ++s)
    rises.emplace_back(free[s + 1] / free[s], std::sqrt(free[s + 1] * free[s]));
  std::sort(rises.rbegin(), rises.rend());
  for (auto const& [rise, clip] : rises) {
    out.clip = fmt::format("optimizer.grad_clip={}", clip);
    out.clipped = train<P>(with(words, {out.clip}), world);
    auto const norms = norms_of(out.clipped);
    for (std::size_t s = 0; s + 1 < norms.size(); ++s)
      if (norms[s] <= clip && clip < norms[s + 1]) return out;
  }
  ADD_FAILURE() << "no clip lies between the norms of two steps";
  return out;
}

Words const& layouts(int ranks) {
  static std::vector<Words> const by_ranks{
      {"parallel.dp=1", "parallel.dp=1 memory.recompute=full"},
      {"parallel.pp=2 pipeline.schedule=zb_h2", "parallel.pp=2 pipeline.schedule=zb_v",
       "parallel.pp=2 pipeline.schedule=1f1b model.tied_embeddings=true",
       "parallel.pp=2 pipeline.schedule=interleaved_1f1b model.preset=llama-tiny",
       "parallel.pp=2 pipeline.schedule=zb_v pipeline.vocab_parallel=true model.tied_embeddings=true",
       "parallel.dp=2 memory.shard=optimizer", "parallel.dp=2 memory.shard=parameters memory.gather=microbatch",
       "parallel.tp=2 parallel.sequence=true", "parallel.cp=2", "parallel.pp=2 pipeline.schedule=gpipe",
       P3D_16BIT ? "parallel.pp=2 pipeline.schedule=zb_h2 precision.pipeline=bf16" : "parallel.dp=2",
       "parallel.pp=2 pipeline.schedule=v_half memory.recompute=full",
       "parallel.pp=2 pipeline.schedule=zb_h2 model.hidden=64 model.ffn=64 model.seq_len=128 model.layers=4 "
       "batch.global=8"},
      {"parallel.pp=3 pipeline.schedule=zb_h2", "parallel.dp=3 memory.shard=gradients"},
      {"parallel.pp=4 pipeline.schedule=zb_h2", "parallel.pp=4 pipeline.schedule=zb_v",
       "parallel.pp=2 parallel.tp=2 pipeline.schedule=zb_h1 pipeline.vocab_parallel=true",
       "parallel.pp=2 parallel.dp=2 pipeline.schedule=zb_v memory.shard=parameters",
       "parallel.pp=2 parallel.dp=2 pipeline.schedule=1f1b memory.shard=optimizer",
       "parallel.pp=2 parallel.dp=2 pipeline.schedule=zb_v memory.shard=gradients memory.reduce=microbatch",
       "parallel.pp=2 parallel.cp=2 pipeline.schedule=zb_h2",
       "parallel.pp=4 pipeline.schedule=gpipe model.hidden=64 model.seq_len=128 batch.global=8",
       "parallel.dp=4 memory.shard=gradients memory.shard_over=2"},
      {"parallel.pp=3 parallel.dp=2 pipeline.schedule=zb_h2 memory.shard=optimizer"},
      {"parallel.pp=4 parallel.dp=2 pipeline.schedule=zb_h2",
       "parallel.pp=4 parallel.tp=2 pipeline.schedule=zb_v pipeline.vocab_parallel=true"}};
  static std::vector<int> const sizes{1, 2, 3, 4, 6, 8};
  auto const at = std::find(sizes.begin(), sizes.end(), ranks) - sizes.begin();
  return by_ranks.at(static_cast<std::size_t>(at));
}

class PostValidation : public testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
};

TEST_F(PostValidation, ChangesNoBit) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(layout);
    auto const words = test::words_of(layout);
    auto const waiting = wait<device::Fp32>(words, world);
    engine::PostValidation count;
    EXPECT_NE(waiting.clipped.front(), waiting.clipped[2]) << "it learns, so that bits can differ";
    EXPECT_EQ(train<device::Fp32>(with(words, {waiting.clip, on}), world, &count), waiting.clipped) << waiting.clip;
    EXPECT_GT(count.taken_back, 0) << waiting.clip;
    EXPECT_LE(count.taken_back, count.tried_out) << waiting.clip;
    // Without a clip only what is not finite is wrong; the first step waits.
    EXPECT_EQ(train<device::Fp32>(with(words, {"optimizer.grad_clip=0", on}), world, &count), waiting.free);
    EXPECT_EQ(count.tried_out, 9);
    EXPECT_EQ(count.taken_back, 0);
  }
}

/// The first layout, which every number of ranks has.
Words first(int ranks) { return test::words_of(layouts(ranks).front()); }

TEST_F(PostValidation, ChangesNoBitOfAnyPrecision) {
  if (world.size() > 4) return;
  std::int64_t taken_back = 0;
  auto const compare = [&]<class P>(P, Words const& more) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(more, " ")));
    auto const words = with(first(world.size()), more);
    auto const waiting = wait<P>(words, world);
    engine::PostValidation count;
    EXPECT_EQ(train<P>(with(words, {waiting.clip, on}), world, &count), waiting.clipped);
    EXPECT_GT(count.tried_out, 0);
    taken_back += count.taken_back;
  };
  compare(device::Fp64(), {"run.precision=fp64"});
  compare(device::Fp32(), {"run.precision=fp32", "optimizer.type=sgd", "optimizer.lr=0.5"});
#if P3D_16BIT
  compare(device::Fp32(), {"run.precision=fp32", "precision.moments=bf16"});
  compare(device::Bf16(), {"run.precision=bf16"});
  compare(device::Bf16(), {"run.precision=bf16", "precision.stochastic_rounding=true", "precision.moments=bf16"});
  compare(device::Fp16(), {"run.precision=fp16", "precision.loss_scale=1024"});
#endif
  EXPECT_GT(taken_back, 2);
}

// Evaluation, sampling, a place in the data: whatever reads weights or slots forgets what was opened.
TEST_F(PostValidation, AnythingMayComeBetweenSteps) {
  auto const words = first(world.size());
  auto const clip = wait<device::Fp32>(words, world).clip;
  auto const run = [&](Words const& more, bool told) {
    engine::Trainer<device::Fp32> trainer(make_config(with(words, with({clip}, more)), world.size()), world);
    std::vector<double> out;
    for (int s = 0; s < 9; ++s) {
      auto const result = trainer.step(1.0, !told || s % 3 != 1);
      EXPECT_EQ(result.votes, world.size());
      EXPECT_EQ(result.step, trainer.steps_done());
      out.insert(out.end(), {result.loss, result.grad_norm, result.lr});
      if (s % 3 == 1) out.push_back(trainer.evaluate(2));
      if (s == 4)
        for (int token : test::greedy(trainer, "Copyright", 3)) out.push_back(token);
      if (s == 5) out.push_back(trainer.score(layout::Range{0, 64}).loss);
      if (s == 7) trainer.set_steps_done(3);  // other data
    }
    return out;
  };
  auto const waiting = run({}, false);
  EXPECT_EQ(run({on}, false), waiting);
  EXPECT_EQ(run({on}, true), waiting);
}

// A trace has every action of every step once, however steps overlap and whatever is done again.
TEST_F(PostValidation, IsRecorded) {
  auto const words = first(world.size());
  engine::Recorder recorder(20), late(20);  // they live as long as the trainer
  engine::Trainer<device::Fp32> trainer(
      make_config(with(words, {wait<device::Fp32>(words, world).clip, on}), world.size()), world);
  trainer.record_into(&recorder);
  for (int s = 0; s < 10; ++s) trainer.step();
  EXPECT_GT(trainer.post_validation().taken_back, 0);
  trainer.record_into(&late);  // a step may have been opened before
  trainer.step();
  ASSERT_GE(late.steps().size(), 1u);
  auto const here = static_cast<std::size_t>(trainer.mesh().coordinate("pp"));
  auto const& actions = trainer.plan().training->ranks[here];
  ASSERT_EQ(recorder.steps().size(), 10u);
  for (auto const& step : recorder.steps()) {
    std::vector<schedule::Action> done;
    double end = 0.0;
    for (auto const& e : step.events) {
      EXPECT_LE(e.begin, e.end);
      EXPECT_LE(end, e.begin + 1e-9);
      end = e.end;
      if (!e.waits && (done.empty() || done.back() != e.action)) done.push_back(e.action);
    }
    EXPECT_EQ(done, actions);
  }
}

// The last step was opened and none follows: the messages under way end with the trainer.
TEST_F(PostValidation, EndsWhileAStepIsOpen) {
  for (int i = 0; i < 3; ++i) {
    engine::Trainer<device::Fp32> trainer(
        make_config(with(first(world.size()), {"optimizer.grad_clip=0", on}), world.size()), world);
    for (int s = 0; s < 2; ++s) trainer.step();
    EXPECT_EQ(trainer.post_validation().tried_out, 1);
  }
}

// What is not finite is found in the gradient, not in weights that an update has spoilt; and nothing stays of it.
TEST_F(PostValidation, NotFiniteIsTakenBack) {
  auto const words = with(first(world.size()), {"optimizer.grad_clip=0"});
  auto const message = [&](Words const& more) {
    engine::Trainer<device::Fp32> trainer(make_config(with(words, more), world.size()), world);
    for (int s = 0; s < 3; ++s) trainer.step();
    auto const before = trainer.inspection().gather_value("layers.1.mlp.up.weight");
    trainer.inspection().spoil_gradient("layers.1.mlp.up.weight");
    std::string text;
    try {
      trainer.step();
    } catch (base::Error const& e) {
      text = e.what();
      EXPECT_EQ(e.code(), base::ExitCode::not_finite);
    }
    EXPECT_EQ(trainer.inspection().gather_value("layers.1.mlp.up.weight"), before);
    return text;
  };
  auto const waiting = message({});
  EXPECT_NE(waiting.find("the gradient of layers.1.mlp.up.weight"), std::string::npos) << waiting;
  EXPECT_EQ(message({on}), waiting);
}

#if P3D_16BIT
// fp16: an overflow skips the update, and the scale falls, as if the step had waited.
TEST_F(PostValidation, OverflowsAreSkipped) {
  auto const words =
      with(first(world.size()), {"optimizer.grad_clip=0", "run.precision=fp16", "precision.loss_scale_initial=256"});
  auto const run = [&](Words const& more, std::int64_t taken_back) {
    engine::Trainer<device::Fp16> trainer(make_config(with(words, more), world.size()), world);
    std::vector<double> out;
    for (int s = 0; s < 6; ++s) {
      if (s == 3) trainer.inspection().spoil_gradient("layers.1.mlp.up.weight");
      auto const result = trainer.step();
      EXPECT_EQ(result.skipped(), s == 3);
      out.insert(out.end(), {result.loss, s == 3 ? 0.0 : result.grad_norm, result.lr, result.loss_scale});
    }
    for (double x : trainer.inspection().gather_value("layers.0.mlp.up.weight")) out.push_back(x);
    EXPECT_EQ(trainer.post_validation().taken_back, taken_back);
    return out;
  };
  auto const waiting = run({}, 0);
  EXPECT_EQ(run({on}, 1), waiting);
}
#endif

TEST_F(PostValidation, MemoryIsWhatWasPredicted) {
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(layout);
    auto const words = with(test::words_of(layout), {"model.hidden=128", "model.ffn=512"});
    engine::Trainer<device::Fp32> trainer(make_config(with(words, {on}), world.size()), world);
    trainer.step();
    auto const& predicted = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
    test::expect_memory(trainer.memory_in_use(), predicted);
    auto const without = engine::make_run_plan(make_config(words, world.size()));
    EXPECT_EQ(2 * predicted.optimizer,
              5 * without.memory_of(trainer.mesh().coordinate("pp")).optimizer);  // 2 of a parameter, now 5
  }
}

}  // namespace
