// SPDX-License-Identifier: Apache-2.0
// model.mtp: all gradients of a step against finite differences of the loss that is minimised, bytes over tp and memory
// against the plan, and what blocks leave as it is: initial values, evaluation and texts.

#include <p3d/engine/trainer.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/traffic.hpp>
#include <p3d/layout/shards.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/temp_dir.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Keys = std::vector<std::string>;
using Trainer = engine::Trainer<device::Fp64>;

config::Config make_config(int ranks, Keys const& more) {
  Keys const own{"model.preset=llama-tiny", "model.heads=4",     "model.kv_heads=4",
                 "model.hidden=16",         "model.ffn=24",      "model.vocab_size=256",
                 "model.seq_len=11",        "model.layers=2",    "batch.micro=1",
                 "run.precision=fp64",      "model.mtp.depth=2", "model.mtp.loss_weight=0.8",
                 "optimizer.grad_clip=0"};
  return test::config_of(test::joined({own, more}), ranks);
}

Keys latent() {
  return {"model.mla.kv_lora_rank=6", "model.mla.q_lora_rank=5", "model.mla.qk_nope_head_dim=2",
          "model.mla.qk_rope_head_dim=2", "model.mla.v_head_dim=3"};
}

/// Experts whose choice does not move with a small change of a weight: all of them are chosen.
Keys experts() {
  return test::joined({latent(),
                       {"model.moe.experts=2", "model.moe.top_k=2", "model.moe.ffn=8", "model.moe.shared_ffn=8",
                        "model.moe.first_dense=1", "model.moe.normalize=false", "model.tied_embeddings=false"}});
}

/// A text of one window: every step of one sample reads the same tokens. Token 9 ends documents.
std::string write_window(test::TempDir const& folder) {
  auto const path = (folder.path() / "window.txt").string();
  std::ofstream(path) << std::string("\x05\x11\x09\x21\x16\x07\x2c\x09\x13\x13\x31\x05", 12);
  return path;
}

TEST(Mtp, GradientsAreDifferencesOfTheLoss) {
  if (comm::Communicator::world().size() > 1) return;
  test::TempDir const folder;
  Keys const data{"data.path=" + write_window(folder),
                  "data.split=0",
                  "run.eval_batches=0",
                  "batch.global=1",
                  "optimizer.type=sgd",
                  "optimizer.lr=1e-30",
                  "optimizer.min_lr=0",
                  "optimizer.lr_schedule=constant",
                  "optimizer.weight_decay=0",
                  "optimizer.warmup_steps=0",
                  "run.steps=1000000"};
  for (auto const& model :
       {Keys{}, Keys{"data.eod_token=9", "data.pack=true", "model.tied_embeddings=true"},
        Keys{"data.eod_token=9", "data.eod_mask_loss=true", "model.tied_embeddings=false"}, experts()}) {
    Trainer trainer(make_config(1, test::joined({data, model})), comm::Communicator::self());
    auto const loss = [&] {
      auto const r = trainer.step();
      return r.loss + 0.8 * r.mtp_loss;
    };
    trainer.inspection().keep_gradients(true);
    loss();
    auto const& specs = trainer.plan().table.specs();
    std::map<std::string, std::vector<double>> gradients;
    for (auto const& spec : specs) gradients[spec.name] = trainer.inspection().gather_gradient(spec.name);
    auto parts = trainer.checkpoint_parts({});
    int blocks = 0;
    for (auto const& part : parts) {
      auto const name = part.array.substr(part.array.find('/') + 1);
      blocks += name.find(".mtp.") != std::string::npos ? 1 : 0;
      auto const& gradient = gradients.at(name);
      // The element with the largest gradient, and another one.
      std::int64_t largest = 0;
      for (std::int64_t i = 0; i < std::ssize(gradient); ++i)
        if (std::fabs(gradient[static_cast<std::size_t>(i)]) > std::fabs(gradient[static_cast<std::size_t>(largest)]))
          largest = i;
      for (auto i : {largest, (largest + 5) % std::ssize(gradient)}) {
        double value = 0.0;
        part.copy_out(i, 1, &value);
        auto const moved = [&](double by) {
          double const x = value + by;
          part.copy_in(i, 1, &x);
          return loss();
        };
        constexpr double h = 1e-4;
        double const slope =
            (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);  // of fourth order
        part.copy_in(i, 1, &value);
        EXPECT_NEAR(gradient[static_cast<std::size_t>(i)], slope, 1e-9 + 1e-7 * std::fabs(slope)) << name << " " << i;
      }
    }
    EXPECT_EQ(blocks, 8);
  }
}

/// The gradients of a step of the same model with another loss weight.
std::map<std::string, std::vector<double>> gradients_with(char const* weight) {
  auto const keys = test::joined(
      {{test::licence_text(), "batch.global=2"},
       experts(),
       {"model.moe.aux_loss=sequence", "model.moe.aux_coefficient=0.5", "model.moe.z_coefficient=0.1", weight}});
  Trainer trainer(make_config(1, keys), comm::Communicator::self());
  trainer.inspection().keep_gradients(true);
  trainer.step();
  EXPECT_EQ(trainer.expert_load().size(), 3u) << "of layer 1 and of both blocks";
  std::map<std::string, std::vector<double>> out;
  for (auto const& spec : trainer.plan().table.specs())
    out[spec.name] = trainer.inspection().gather_gradient(spec.name);
  return out;
}

// The losses that balance experts of a block are among what it adds.
TEST(Mtp, LossWeightIsAFactorOfAllThatBlocksAdd) {
  if (comm::Communicator::world().size() > 1) return;
  auto const none = gradients_with("model.mtp.loss_weight=0.0"), some = gradients_with("model.mtp.loss_weight=0.4"),
             more = gradients_with("model.mtp.loss_weight=0.8");
  int blocks = 0;
  for (auto const& [name, numbers] : none) {
    double largest = 0.0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      double const one = some.at(name)[i] - numbers[i], two = more.at(name)[i] - numbers[i];
      EXPECT_NEAR(two, 2 * one, 1e-12 + 1e-10 * std::fabs(two)) << name;
      largest = std::max(largest, std::fabs(two));
    }
    EXPECT_GT(largest, 0.0) << name;
    blocks += name.starts_with("layers.2.") || name.starts_with("layers.3.") ? 1 : 0;
  }
  EXPECT_GT(blocks, 20);
}

TEST(Mtp, BytesOverTpAreThoseOfThePlan) {
  auto world = comm::Communicator::world();
  int const t = world.size();
  if (t != 2 && t != 4) return;
  for (auto const& more :
       {Keys{}, Keys{"parallel.sequence=true"}, Keys{"parallel.sequence=true", "memory.recompute=full"},
        test::joined({latent(), {"parallel.sequence=true"}}), latent(), Keys{"model.mtp.loss_weight=0.0"},
        Keys{"parallel.sequence=true", "model.mtp.depth=1"},
        Keys{"parallel.sequence=true", "parallel.embedding=replicated"}, Keys{"parallel.embedding=replicated"}}) {
    auto const keys = test::joined({{test::licence_text(), "batch.global=3", fmt::format("parallel.tp={}", t)}, more});
    auto const c = make_config(t, keys);
    Trainer trainer(c, world);
    trainer.step();
    auto& group = trainer.mesh().along({"tp"});
    auto const before = group.accounting().sent;
    trainer.step();
    auto const after = group.accounting().sent;
    std::array<std::int64_t, 3> found{after.all_reduce - before.all_reduce,
                                      after.reduce_scatter - before.reduce_scatter,
                                      after.all_gather - before.all_gather};
    world.all_reduce(found.data(), 3, comm::Type::int64, comm::Reduction::sum).wait();
    auto const plan = engine::make_run_plan(c);
    auto const expected = plan::tensor_traffic(c, plan.stages, plan.activations, plan.training, 0);
    double gradients = 0;  // of buckets that tp sums
    layout::StageParams const params(plan.table, plan.stages, 0, plan.grid.sizes(),
                                     layout::PerAxis::only(layout::Axis::pp, 0));
    for (auto const& b : layout::make_buckets(params, plan::bucket_rule(c)))
      if (b.axes.has(layout::Axis::tp) || b.axes.has(layout::Axis::edp))
        gradients += 8.0 * static_cast<double>(b.size());
    EXPECT_EQ(static_cast<double>(found[0]), expected.all_reduce + 2 * (t - 1) * gradients);
    EXPECT_EQ(static_cast<double>(found[1]), expected.reduce_scatter);
    EXPECT_EQ(static_cast<double>(found[2]), expected.all_gather);
    EXPECT_EQ(found[1] > 0, c.parallel.sequence);
  }
}

TEST(Mtp, MemoryIsThatOfThePlan) {
  auto world = comm::Communicator::world();
  std::vector<Keys> all{{}};
  if (world.size() == 2)
    all = {{"parallel.pp=2"},
           {"parallel.pp=2", "pipeline.schedule=zb_h1", "memory.recompute=full"},
           {"parallel.tp=2", "parallel.sequence=true"},
           {"parallel.cp=2", "memory.shard=gradients"},
           {"parallel.dp=2", "memory.shard=parameters", "memory.shard_layers=1"}};
  if (world.size() == 4)
    all = {{"parallel.pp=2", "parallel.tp=2", "parallel.sequence=true"}, {"parallel.pp=4", "model.layers=4"}};
  if (world.size() == 3 || world.size() > 4) return;
  for (auto const& layout : all)
    for (auto const& model : {Keys{"model.tied_embeddings=false"}, Keys{"model.tied_embeddings=true"}, experts()}) {
      auto const keys = test::joined({{test::licence_text(), "batch.global=4"}, model, layout});
      Trainer trainer(make_config(world.size(), keys), world);
      trainer.step();
      auto const found = trainer.memory_in_use(), expected = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
      test::expect_memory(found, expected);
      if (trainer.config().memory.divides()) continue;  // replicas own runs that differ by some elements
      EXPECT_EQ(found.params, expected.params);
      EXPECT_EQ(found.grads, expected.grads);
      EXPECT_EQ(found.optimizer, expected.optimizer);
      EXPECT_EQ(found.activations, expected.activations);
      EXPECT_EQ(trainer.inspection().activation_high_water(), trainer.inspection().activation_capacity());
    }
}

TEST(Mtp, BlocksLeaveTheModelAsItIs) {
  auto world = comm::Communicator::world();
  auto const keys = [&](char const* depth) {
    return Keys{test::licence_text(),
                "model.vocab_size=256",
                "batch.global=12",
                depth,
                fmt::format("parallel.pp={}", world.size() <= 2 ? world.size() : 1),
                fmt::format("parallel.dp={}", world.size() <= 2 ? 1 : world.size()),
                "model.mtp.loss_weight=0.3"};
  };
  Trainer plain(make_config(world.size(), keys("model.mtp.depth=0")), world),
      predicting(make_config(world.size(), keys("model.mtp.depth=2")), world);
  for (auto const& spec : plain.plan().table.specs())
    EXPECT_EQ(plain.inspection().gather_value(spec.name), predicting.inspection().gather_value(spec.name)) << spec.name;
  EXPECT_GT(predicting.plan().table.specs().size(), plain.plan().table.specs().size());
  EXPECT_EQ(plain.evaluate(1), predicting.evaluate(1));
  EXPECT_EQ(test::greedy(plain, "The", 5), test::greedy(predicting, "The", 5));
  auto const a = plain.step(), b = predicting.step();
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.mtp_loss, 0.0);
  EXPECT_NEAR(b.mtp_loss, std::log(256.0), 0.2);
}

}  // namespace
