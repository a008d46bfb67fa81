// SPDX-License-Identifier: Apache-2.0
// Weights that come and go as the schedule says: a provider keeps them apart from what layers read, spoils what is
// released, and every program gives the bits that it gives with weights that stay.

#include <p3d/base/error.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/weights.hpp>

#include <support/errors.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using schedule::Op;
using schedule::Program;
using Policy = device::Fp64;

config::Config make_config(bool llama, int dp, int tp, int pp) {
  return test::config_of(test::joined({test::family(llama),
                                       test::tiny_model(4),
                                       test::mesh_keys(dp, tp, pp),
                                       {"batch.micro=1", "batch.global=8", "run.precision=fp64", "model.dropout=0.1",
                                        "optimizer.lr=1e-2", "comm.bucket_mb=0.01", test::licence_text()}}),
                         dp * tp * pp);
}

/// Values from one place, gradients from another.
template <template <class> class Pair>
void take_grad(Pair<Policy>& of, Pair<Policy> const& from) {
  of.grad = from.grad;
}
void take_grads(model::NormWeights<Policy>& of, model::NormWeights<Policy> const& from) {
  take_grad(of.weight, from.weight);
  take_grad(of.bias, from.bias);
}
model::StageWeights<Policy> with_gradients(model::StageWeights<Policy> of, model::StageWeights<Policy> const& from) {
  take_grad(of.embedding, from.embedding);
  take_grad(of.positions, from.positions);
  take_grad(of.head, from.head);
  take_grads(of.final_norm, from.final_norm);
  for (std::size_t l = 0; l < of.layers.size(); ++l) {
    auto& a = of.layers[l];
    auto const& b = from.layers[l];
    take_grads(a.norm1, b.norm1);
    take_grads(a.norm2, b.norm2);
    take_grad(a.qkv, b.qkv);
    take_grad(a.attn_out, b.attn_out);
    take_grad(a.up, b.up);
    take_grad(a.down, b.down);
    take_grad(a.qkv_bias, b.qkv_bias);
    take_grad(a.attn_out_bias, b.attn_out_bias);
    take_grad(a.up_bias, b.up_bias);
    take_grad(a.down_bias, b.down_bias);
  }
  return of;
}

/// The home of the weights is `params`; layers read a copy that is NaN while it is not there.
class MovingWeights final : public model::WeightProvider<Policy> {
public:
  MovingWeights(config::Config const& c, layout::StageMap const& stages, int stage, model::Parameters<Policy>& params,
                model::StageWeights<Policy> const& whole, int& moves)
      : home_(params.values()),
        copy_(device::ExecSpace(), params.layout(), 1),
        weights_(with_gradients(model::stage_weights(c, stages, stage, copy_), whole)),
        moves_(moves) {
    spoil();
  }
  model::StageWeights<Policy> const& weights(int) override { return weights_; }
  void gather(int) override { bring(); }
  void release(int) override { spoil(); }
  void offload(int) override { spoil(); }
  void reload(int) override { bring(); }

private:
  void bring() {
    Kokkos::deep_copy(copy_.values(), home_);
    ++moves_;
  }
  void spoil() { kernels::fill<double>(device::ExecSpace(), copy_.values(), std::numeric_limits<double>::quiet_NaN()); }

  device::View1<double> home_;
  model::Parameters<Policy> copy_;
  model::StageWeights<Policy> weights_;
  int& moves_;
};

/// Losses, all gradients of the last step, a validation loss and all weights; bit for bit.
std::vector<double> train(engine::Trainer<Policy>& trainer) {
  std::vector<double> out;
  for (int s = 0; s < 3; ++s) {
    trainer.inspection().keep_gradients(s == 2);
    out.push_back(trainer.step().loss);
  }
  for (auto const& spec : trainer.plan().table.specs()) {
    for (double x : trainer.inspection().gather_gradient(spec.name)) out.push_back(x);
    for (double x : trainer.inspection().gather_value(spec.name)) out.push_back(x);
  }
  out.push_back(trainer.evaluate(1));
  for (int c : test::greedy(trainer, "The", 2)) out.push_back(c);
  return out;
}

struct Case {
  int dp, tp, pp;
  char const* schedule;
};

engine::RunPlan plan_of(config::Config const& config, Program const& program) {
  layout::StageMap const stages(layout::even_layers(4, program.num_stages), program.stage_rank, config.parallel.pp);
  return engine::make_run_plan(config, stages, {program, plan::execution_of(config)});
}

/// RELOAD before a stage's first reader and OFFLOAD after its last one: weights that live elsewhere.
Program offloaded(Program program) {
  schedule::shard_weights(program, {});
  for (auto& actions : program.ranks)
    for (auto& a : actions) {
      if (a.op == Op::gather_weights) a.op = Op::reload_weights;
      if (a.op == Op::release_weights) a.op = Op::offload_weights;
      if (a.op == Op::reduce_scatter_gradients) a.op = Op::reduce_gradients;
    }
  return program;
}

/// A STEP for each stage in place of the rank's.
Program one_by_one(Program program) {
  for (auto& actions : program.ranks) {
    actions.pop_back();
    auto const rank = &actions - program.ranks.data();
    for (int s = 0; s < program.num_stages; ++s)
      if (program.stage_rank[static_cast<std::size_t>(s)] == rank) actions.push_back({Op::stage_step, s, -1, -1, 1});
  }
  return program;
}

TEST(MovedWeights, GiveTheSameBits) {
  auto world = comm::Communicator::world();
  int ran = 0;
  for (bool llama : {false, true})
    for (Case const& c : {Case{1, 1, 1, "1f1b"}, Case{1, 1, 2, "zb_h1"}, Case{2, 1, 1, "gpipe"}, Case{1, 2, 1, "1f1b"},
                          Case{1, 1, 2, "interleaved_1f1b"}, Case{2, 1, 2, "zb_v"}, Case{1, 2, 2, "looped_bfs"},
                          Case{1, 1, 4, "1f1b"}}) {
      if (c.dp * c.tp * c.pp != world.size()) continue;
      SCOPED_TRACE(fmt::format("dp{} tp{} pp{} {}", c.dp, c.tp, c.pp, c.schedule));
      auto const config = make_config(llama, c.dp, c.tp, c.pp);
      Program const whole =
          schedule::complete(schedule::generate(c.schedule, {c.pp, static_cast<int>(config.batch.microbatches), 0, 0}));
      engine::Trainer<Policy> resident(config, plan_of(config, whole), world);
      auto const expected = train(resident);
      ASSERT_GT(expected[0], expected[2]) << "it learns, so that bits can differ";
      {
        engine::Trainer<Policy> trainer(config, plan_of(config, one_by_one(whole)), world);
        EXPECT_EQ(train(trainer), expected) << "updates of each stage";
      }
      for (int kind = 0; kind < 3; ++kind) {
        Program program = kind == 2 ? offloaded(whole) : whole;
        if (kind < 2)
          schedule::shard_weights(program, {.gather = kind == 0 ? schedule::Every::step : schedule::Every::microbatch});
        auto plan = plan_of(config, program);
        auto const stages = plan.stages;
        int moves = 0;
        engine::Trainer<Policy> trainer(
            config, std::move(plan), world,
            [&](int stage, model::Parameters<Policy>& params, model::StageWeights<Policy> const& weights) {
              return std::make_unique<MovingWeights>(config, stages, stage, params, weights, moves);
            });
        auto const found = train(trainer);
        EXPECT_EQ(found, expected) << "kind " << kind;
        EXPECT_GE(moves, 4) << "kind " << kind;
        ++ran;
      }
    }
  if (world.size() <= 2 || world.size() == 4) {
    EXPECT_GE(ran, 6);
  }
}

#if P3D_16BIT
// A rank that updates its stages one by one makes one version of its weights an update. Rounding at random goes by the
// number of the update that made the version, so bits show it while fewer than `delay` updates are done; not from
// update 0 on, behind which no version is counted.
TEST(MovedWeights, UpdatesOfEachStageMakeOneVersion) {
  auto world = comm::Communicator::world();
  int const pp = std::min(2, world.size());
  auto const config = test::config_of(
      test::joined({test::tiny_model(4),
                    test::mesh_keys(world.size() / pp, 1, pp),
                    {"batch.micro=1", "batch.global=8", "run.precision=bf16", "precision.stochastic_rounding=true",
                     "optimizer.lr=1e-2", "optimizer.delay=3", "pipeline.flush=always", test::licence_text()}}),
      world.size());
  Program const whole = schedule::complete(schedule::generate(pp > 1 ? "interleaved_1f1b" : "1f1b",
                                                              {pp, static_cast<int>(config.batch.microbatches), 0, 0}));
  std::vector<std::vector<double>> losses;
  for (auto const& program : {whole, one_by_one(whole)}) {
    engine::Trainer<device::Bf16> trainer(config, plan_of(config, program), world);
    trainer.set_steps_done(7);
    auto& all = losses.emplace_back();
    for (std::int64_t s = 1; s <= 5; ++s) {
      all.push_back(trainer.step().loss);
      trainer.checkpoint_parts({});
      EXPECT_EQ(trainer.versions_made(), s < 3 ? s : -1);
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
}
#endif

TEST(MovedWeights, NeedSomebodyWhoMovesThem) {
  auto world = comm::Communicator::world();
  auto const config = make_config(false, 1, 1, world.size());
  Program const whole = schedule::complete(schedule::one_f_one_b(world.size(), 8));
  Program sharded = whole;
  schedule::shard_weights(sharded, {});
  test::expect_error([&] { engine::Trainer<Policy>(config, plan_of(config, sharded), world); },
                     "a schedule for resident weights, whole on their ranks");
  Program early = one_by_one(whole);  // a stage is updated before its rank has computed everything
  if (world.size() > 1) return;
  early = schedule::parse_program(
      "p3d-schedule 1 stages=1 ranks=1 microbatches=8 slots=1\nrank 0: 0F0@0 0B0@0 0REDUCE 0STEPv1 0F1v1@0 0B1v1@0 "
      "0F2v1@0 0B2v1@0 0F3v1@0 0B3v1@0 0F4v1@0 0B4v1@0 0F5v1@0 0B5v1@0 0F6v1@0 0B6v1@0 0F7v1@0 0B7v1@0 0REDUCE "
      "0STEPv2");
  test::expect_error([&] { engine::Trainer<Policy>(config, plan_of(config, early), world); },
                     "all need the norm of the whole gradient");
}

}  // namespace
