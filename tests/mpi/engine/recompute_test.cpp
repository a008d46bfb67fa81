// SPDX-License-Identifier: Apache-2.0
// Recomputation changes no bit: losses, gradients, weights and moments are those of the same run that keeps all
// activations, in every layout and schedule; and the arena is filled to the last byte of what was predicted.

#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;

constexpr int steps = 3;

struct Case {
  int dp, tp, pp;
  char const* schedule;
};

/// Keys of [memory] behind "memory.".
using Setting = std::vector<std::string>;

std::vector<Setting> settings(Case const& c) {
  std::vector<Setting> out{{"recompute=full"},
                           {"recompute=[\"norm\", \"activation\", \"attention\"]"},
                           {"recompute=full", "recompute_every=2"},
                           {"recompute=[\"norm\"]"},
                           {"recompute=full", "recompute_group=2"},
                           {"recompute=full", "recompute_layers=3", "recompute_group=2"},
                           {"recompute=[\"activation\", \"rotary\"]"},
                           {"recompute=full", "recompute_microbatches_kept=1"},
                           {"recompute=[\"attention\"]"},
                           {"recompute=full", "recompute_layers=1", "recompute_microbatches_kept=2"}};
  // Divided weights come and go with parts of stages.
  for (Setting const& s :
       {Setting{"shard=parameters", "recompute=full", "recompute_group=2", "shard_layers=3"},
        Setting{"shard=gradients", "recompute=full", "recompute_every=2"},
        Setting{"shard=parameters", "gather=microbatch", "recompute=[\"norm\", \"attention\"]", "shard_layers=2"}})
    if (c.dp > 1) out.push_back(s);
  if (c.tp == 1) return out;
  for (Setting const& s :
       {Setting{"recompute=full", "recompute_communication=false"},
        Setting{"recompute=full", "share_saved_inputs=true"},
        Setting{"recompute=full", "share_saved_inputs=true", "recompute_group=3"},
        Setting{"recompute=full", "share_saved_inputs=true", "recompute_every=2", "recompute_communication=false"}})
    out.push_back(s);
  return out;
}

config::Config make_config(bool llama, std::string const& precision, Case const& c, Setting const& setting,
                           test::Keys const& more = {}) {
  auto keys = test::joined({test::tiny_model(8),
                            test::mesh_keys(c.dp, c.tp, c.pp),
                            {llama ? "model.preset=llama-tiny" : "model.preset=gpt2-tiny", "model.heads=4",
                             llama ? "model.kv_heads=2" : "model.kv_heads=4", "batch.micro=2", "batch.global=32",
                             "run.precision=" + precision, "model.dropout=0.1", "optimizer.lr=1e-2",
                             test::licence_text(), fmt::format("pipeline.schedule={}", c.schedule)}});
  for (auto const& s : setting) keys.push_back("memory." + s);
  return test::config_of(test::joined({keys, more}), c.dp * c.tp * c.pp);
}

struct Outcome {
  std::vector<double> numbers;           ///< losses, all gradients of the last step, all weights
  std::vector<std::vector<char>> state;  ///< weights and moments that this rank keeps, as bytes
  std::int64_t memory = 0;               ///< of activations and scratch
};

template <class P>
Outcome train(config::Config const& config, comm::Communicator const& world) {
  engine::Trainer<P> trainer(config, world);
  Outcome out;
  for (int s = 0; s < steps; ++s) {
    trainer.inspection().keep_gradients(s + 1 == steps);
    out.numbers.push_back(trainer.step().loss);
  }
  for (auto const& spec : trainer.plan().table.specs()) {
    for (double x : trainer.inspection().gather_gradient(spec.name)) out.numbers.push_back(x);
    for (double x : trainer.inspection().gather_value(spec.name)) out.numbers.push_back(x);
  }
  out.numbers.push_back(trainer.evaluate(1));
  for (auto const& part :
       trainer.checkpoint_parts(config::state_of(trainer.config().optimizer_with_versions()).arrays)) {
    auto const n = part.rows * part.cols;
    auto& bytes = out.state.emplace_back(static_cast<std::size_t>(n) * sizeof(typename P::Master));
    if (n > 0) part.copy_out(0, n, bytes.data());
  }
  auto const memory = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
  out.memory = memory.activations + memory.workspace;
  EXPECT_EQ(static_cast<std::int64_t>(trainer.inspection().activation_high_water()), out.memory);
  EXPECT_EQ(trainer.inspection().activation_capacity(), trainer.inspection().activation_high_water());
  return out;
}

std::vector<Case> cases(int ranks) {
  std::vector<Case> out;
  for (Case const& c :
       {Case{1, 1, 1, "1f1b"}, Case{2, 1, 1, "gpipe"}, Case{1, 2, 1, "1f1b"}, Case{1, 1, 2, "gpipe"},
        Case{1, 1, 2, "1f1b"}, Case{1, 1, 2, "interleaved_1f1b"}, Case{1, 1, 2, "zb_h1"}, Case{1, 1, 2, "zb_v"},
        Case{1, 1, 2, "dualpipe_v"}, Case{1, 2, 2, "zb_h1"}, Case{2, 1, 2, "zb_v"}, Case{1, 2, 2, "dualpipe_v"},
        Case{1, 4, 1, "gpipe"}, Case{1, 1, 4, "zb_h1"}, Case{1, 1, 4, "interleaved_1f1b"}})
    if (c.dp * c.tp * c.pp == ranks && !(c.tp == 4)) out.push_back(c);
  return out;
}

/// Every setting in every layout with P3D_EVERY_PROGRAM=1; else, on more than one rank, layouts take settings in turn.
TEST(Recompute, ChangesNoBit) {
  auto world = comm::Communicator::world();
  bool const every = std::getenv("P3D_EVERY_PROGRAM") != nullptr;
  std::size_t const stride = world.size() == 1 ? 1 : world.size() == 2 ? 3 : 7;
  std::size_t turn = 0, ran = 0;
  for (Case const& c : cases(world.size())) {
    for (bool const llama : {false, true}) {
      for (std::string const precision : {"fp64", "fp32"}) {
        bool const wide = precision == "fp64";
        if (!every && wide != llama) continue;
        auto const reference = [&](auto policy) {
          return train<decltype(policy)>(make_config(llama, precision, c, {}), world);
        };
        Outcome const expected = wide ? reference(device::Fp64{}) : reference(device::Fp32{});
        ASSERT_GT(expected.numbers[0], expected.numbers[steps - 1] + 1e-3) << "it learns, so that bits can differ";
        auto const all = settings(c);
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (turn++ % stride != 0 && !every) continue;
          SCOPED_TRACE(fmt::format("dp{} tp{} pp{} {} {} {}: {}", c.dp, c.tp, c.pp, c.schedule,
                                   llama ? "llama" : "gpt2", precision, fmt::join(all[i], ", ")));
          auto const config = make_config(llama, precision, c, all[i]);
          bool const divides = config.memory.shard != config::Shard::none;
          Outcome const found = wide ? train<device::Fp64>(config, world) : train<device::Fp32>(config, world);
          EXPECT_TRUE(found.numbers == expected.numbers) << "losses, gradients and weights";
          EXPECT_TRUE(divides || found.state == expected.state) << "weights and moments of this rank";
          ++ran;
        }
      }
    }
  }
  if (world.rank() == 0) fmt::print("{} runs\n", ran);
  EXPECT_GE(ran, 6u);
}

// An input of 7 x 15 numbers has no equal parts.
TEST(Recompute, SharesOfUnequalSizeChangeNoBit) {
  auto world = comm::Communicator::world();
  if (world.size() == 1) return;
  Case const c{1, world.size(), 1, "1f1b"};
  test::Keys const uneven{"model.hidden=15", "model.head_dim=4", "model.kv_heads=4", "model.seq_len=7",
                          "batch.micro=1"};
  for (bool const llama : {true, false}) {
    SCOPED_TRACE(llama ? "llama" : "gpt2");
    auto const with = [&](Setting const& setting) {
      return train<device::Fp64>(make_config(llama, "fp64", c, setting, uneven), world).numbers;
    };
    EXPECT_TRUE(with({"recompute=full", "share_saved_inputs=true"}) == with({}));
  }
}

// The ranks of a pipeline order the actions of a divided vocabulary by predicted times, which recomputation changes.
// Two of these actions add to the gradient of a tied embedding.
TEST(Recompute, ChangesNoBitOfATiedEmbeddingThatIsDivided) {
  auto world = comm::Communicator::world();
  std::vector<std::string> const divided{"pipeline.vocab_parallel=true", "model.tied_embeddings=true", "batch.micro=1"};
  for (char const* schedule : {"1f1b", "zb_h1"}) {
    SCOPED_TRACE(schedule);
    Case const c{1, 1, world.size(), schedule};
    if (c.pp == 1) return;
    auto const with = [&](Setting const& setting) {
      return train<device::Fp32>(make_config(false, "fp32", c, setting, divided), world).numbers;
    };
    auto const expected = with({});
    ASSERT_GT(expected[0], expected[steps - 1] + 1e-3) << "it learns, so that bits can differ";
    EXPECT_TRUE(with({"recompute=full"}) == expected);
    EXPECT_TRUE(with({"recompute=[\"attention\"]"}) == expected);
  }
}

}  // namespace
