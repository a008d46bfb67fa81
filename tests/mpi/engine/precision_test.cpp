// SPDX-License-Identifier: Apache-2.0
// Training in 16 bits under every layout: losses near those of one rank and of fp32, the same trace of the loss scale
// when one rank overflows, memory and messages as predicted, and states that go on after a checkpoint.

#include <p3d/base/error.hpp>
#include <p3d/device/view.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/errors.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;

struct Mesh {
  int dp = 1, tp = 1, pp = 1;
  char const* schedule = "1f1b";
};

config::Config make_config(std::string const& precision, Mesh mesh, test::Keys const& more = {}) {
  return test::config_of(
      test::joined({test::mesh_keys(mesh.dp, mesh.tp, mesh.pp),
                    {"model.preset=llama-tiny", "model.heads=4", "model.kv_heads=2", "model.hidden=32", "model.ffn=64",
                     "model.seq_len=16", "model.layers=4", "batch.micro=1", "batch.global=16", "run.steps=40",
                     "run.precision=" + precision, "optimizer.lr=3e-3", test::licence_text(),
                     fmt::format("pipeline.schedule={}", mesh.schedule)},
                    more}),
      mesh.dp * mesh.tp * mesh.pp);
}

std::vector<Mesh> meshes(int ranks) {
  std::vector<Mesh> out;
  for (Mesh m : {Mesh{2, 1, 1}, Mesh{1, 2, 1}, Mesh{1, 1, 2}, Mesh{1, 1, 2, "zb_v"}, Mesh{4, 1, 1}, Mesh{2, 2, 1},
                 Mesh{1, 2, 2}, Mesh{2, 1, 2, "interleaved_1f1b"}, Mesh{1, 1, 4, "zb_h1"}, Mesh{2, 2, 2, "gpipe"}})
    if (m.dp * m.tp * m.pp == ranks) out.push_back(m);
  return out;
}

struct Trace {
  std::vector<double> losses, scales;
  std::vector<bool> skipped;
};

/// 20 steps. Before steps 5, 6 and 12 a gradient becomes infinite on one rank of the stage that has it.
template <class P>
Trace train(config::Config const& config, comm::Communicator const& world, bool overflow) {
  engine::Trainer<P> trainer(config, world);
  Trace out;
  for (int step = 1; step <= 20; ++step) {
    if (overflow && (step == 5 || step == 6 || step == 12))
      trainer.inspection().spoil_gradient("layers.2.mlp.down.weight");
    auto const r = trainer.step();
    out.losses.push_back(r.loss);
    out.scales.push_back(r.loss_scale);
    out.skipped.push_back(r.skipped());
    if (r.skipped()) {
      EXPECT_NE(r.overflow.find("the gradient of layers.2.mlp.down.weight"), std::string::npos) << r.overflow;
    }
  }
  auto const memory = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
  EXPECT_EQ(static_cast<std::int64_t>(trainer.inspection().activation_high_water()),
            memory.activations + memory.workspace);
  return out;
}

void expect_near(Trace const& found, Trace const& expected, double relative, std::string const& what) {
  EXPECT_EQ(found.scales, expected.scales) << what;
  EXPECT_EQ(found.skipped, expected.skipped) << what;
  double worst = 0.0;
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    worst = std::max(worst, std::fabs(found.losses[i] - expected.losses[i]) / expected.losses[i]);
  EXPECT_LE(worst, relative) << what;
  if (comm::Communicator::world().rank() == 0) fmt::print("{}: at most {:.1e}\n", what, worst);
}

TEST(Precision, EveryLayoutFollowsOneRank) {
  auto world = comm::Communicator::world();
  auto self = comm::Communicator::self();
  std::vector<std::string> const scaling{"precision.loss_scale_initial=1024", "precision.loss_scale_interval=4"};
  auto const fp32 = train<device::Fp32>(make_config("fp32", {}), self, false);
  auto const bf16 = train<device::Bf16>(make_config("bf16", {}), self, false);
  auto const rounded =
      train<device::Bf16>(make_config("bf16", {}, {"precision.stochastic_rounding=true"}), self, false);
  auto const moments = train<device::Bf16>(make_config("bf16", {}, {"precision.moments=bf16"}), self, false);
  auto const gradients =
      train<device::Bf16Gradients>(make_config("bf16", {}, {"precision.gradients=bf16"}), self, false);
  auto const fp16 = train<device::Fp16>(make_config("fp16", {}, scaling), self, true);
  auto const clean = train<device::Fp16>(make_config("fp16", {}, scaling), self, false);
  ASSERT_GT(fp32.losses.front(), fp32.losses.back() + 1.0) << "it learns, so that losses can differ";
  expect_near({bf16.losses, fp32.scales, fp32.skipped}, fp32, 5e-3, "bf16 beside fp32");
  expect_near({rounded.losses, fp32.scales, fp32.skipped}, fp32, 5e-3, "bf16, rounded stochastically, beside fp32");
  expect_near({moments.losses, fp32.scales, fp32.skipped}, fp32, 1e-2, "bf16 with moments in bf16 beside fp32");
  expect_near({gradients.losses, fp32.scales, fp32.skipped}, fp32, 1e-2, "bf16 with gradients in bf16 beside fp32");
  expect_near({clean.losses, fp32.scales, fp32.skipped}, {fp32.losses, fp32.scales, fp32.skipped}, 5e-3,
              "fp16 beside fp32");
  // Hysteresis of 2: the first overflow changes nothing, the second and the third halve; steps 7 to 10 double.
  EXPECT_EQ(fp16.scales, (std::vector<double>{1024, 1024, 1024, 1024, 2048, 2048, 1024, 1024, 1024, 1024,
                                              2048, 2048, 2048, 2048, 2048, 2048, 4096, 4096, 4096, 4096}));
  EXPECT_TRUE(fp16.skipped[4] && fp16.skipped[5] && fp16.skipped[11]);
  for (Mesh const& m : meshes(world.size())) {
    auto const name = fmt::format("dp{} tp{} pp{} {}", m.dp, m.tp, m.pp, m.schedule);
    expect_near(train<device::Bf16>(make_config("bf16", m), world, false), bf16, 2e-2, name + " bf16");
    expect_near(train<device::Bf16>(make_config("bf16", m, {"precision.stochastic_rounding=true"}), world, false),
                rounded, 2e-2, name + " bf16, rounded stochastically");
    expect_near(train<device::Bf16Gradients>(make_config("bf16", m, {"precision.gradients=bf16"}), world, false),
                gradients, 2e-2, name + " bf16 with gradients in bf16");
    expect_near(train<device::Fp16>(make_config("fp16", m, scaling), world, true), fp16, 2e-2, name + " fp16");
  }
}

// Operands of GEMMs in 16 bits, all else in fp32: losses are off fp32's by less than those of bf16 are, but more than
// rounding in fp32 would make. fp16 has the loss scale of run.precision = "fp16".
TEST(Precision, AutocastIsBetweenFp32AndBf16) {
  auto world = comm::Communicator::world();
  auto self = comm::Communicator::self();
  auto const with = [](Mesh m, char const* type) {
    return make_config("fp32", m,
                       {std::string("precision.autocast=") + type, "precision.loss_scale_initial=1024",
                        "precision.loss_scale_interval=4"});
  };
  auto const bf16 = [](Mesh m) { return make_config("fp32", m, {"precision.autocast=bf16"}); };
  auto const fp32 = train<device::Fp32>(make_config("fp32", {}), self, false);
  auto const cast = train<device::Fp32>(bf16({}), self, false);
  auto const narrow = train<device::Bf16>(make_config("bf16", {}), self, false);
  auto const scaled = train<device::Fp32>(with({}, "fp16"), self, true);
  double of_cast = 0.0, of_narrow = 0.0;
  for (std::size_t i = 0; i < fp32.losses.size(); ++i) {
    of_cast += std::fabs(cast.losses[i] - fp32.losses[i]);
    of_narrow += std::fabs(narrow.losses[i] - fp32.losses[i]);
  }
  EXPECT_GT(of_cast, 1e-4);
  EXPECT_LT(of_cast, of_narrow);
  expect_near(cast, fp32, 5e-3, "autocast to bf16 beside fp32");
  EXPECT_EQ(scaled.scales[5], 2048.0);
  EXPECT_TRUE(scaled.skipped[4] && scaled.skipped[5] && scaled.skipped[11]);
  for (Mesh const& m : meshes(world.size())) {
    auto const name = fmt::format("dp{} tp{} pp{} {}", m.dp, m.tp, m.pp, m.schedule);
    expect_near(train<device::Fp32>(bf16(m), world, false), cast, 5e-3, name + " autocast to bf16");
    expect_near(train<device::Fp32>(with(m, "fp16"), world, true), scaled, 5e-3, name + " autocast to fp16");
  }
  auto const again = train<device::Fp32>(make_config("fp32", {}), self, false);
  EXPECT_EQ(again.losses, fp32.losses) << "a trainer sets the operands anew";
}

/// Bytes that this rank gives to one step's messages, between stages and over tp.
template <class P>
std::vector<std::int64_t> traffic(config::Config const& config, comm::Communicator const& world) {
  engine::Trainer<P> trainer(config, world);
  trainer.mesh().along("pp").reset_accounting();
  trainer.mesh().along("tp").reset_accounting();
  trainer.step();
  return {trainer.mesh().along("pp").accounting().bytes, trainer.mesh().along("tp").accounting().bytes};
}

TEST(Precision, HalfTheBytesTravel) {
  auto world = comm::Communicator::world();
  for (Mesh const& m : meshes(world.size())) {
    auto const fp32 = traffic<device::Fp32>(make_config("fp32", m), world);
    auto const config = make_config("bf16", m);
    auto const bf16 = traffic<device::Bf16>(config, world);
    auto const fp16 = traffic<device::Fp16>(make_config("fp16", m), world);
    EXPECT_EQ(2 * bf16[0], fp32[0]);
    EXPECT_EQ(fp16, bf16);
    // The loss's statistics stay float: maximum and two sums of each token, where the last stage is.
    engine::RunPlan const plan = engine::make_run_plan(config);
    int const last = plan.stages.pipeline_rank(plan.stages.num_stages() - 1);
    bool const with_loss = plan.grid.coordinates(world.rank()).pp == last;
    std::int64_t const tokens = config.batch.microbatches * config.batch.micro * config.model.seq_len;
    std::int64_t const statistics = m.tp > 1 && with_loss ? 3 * 4 * tokens : 0;
    EXPECT_EQ(2 * (bf16[1] - statistics), fp32[1] - statistics);
    EXPECT_EQ(fp32[1] > 0, m.tp > 1);
    EXPECT_EQ(fp32[0] > 0, m.pp > 1);
  }
}

TEST(Precision, LossyWiresKeepNearAndHalveTheirBytes) {
  auto world = comm::Communicator::world();
  for (Mesh const& m : meshes(world.size())) {
    if (m.tp > 1) continue;
    auto const name = fmt::format("dp{} pp{} {} with bf16 on the wire", m.dp, m.pp, m.schedule);
    std::vector<std::string> const narrow{"precision.reduction=bf16", "precision.pipeline=bf16"};
    auto const exact = train<device::Fp32>(make_config("fp32", m), world, false);
    auto const lossy = train<device::Fp32>(make_config("fp32", m, narrow), world, false);
    EXPECT_NE(lossy.losses, exact.losses) << name;
    expect_near(lossy, exact, 5e-3, name);
    EXPECT_EQ(2 * traffic<device::Fp32>(make_config("fp32", m, narrow), world)[0],
              traffic<device::Fp32>(make_config("fp32", m), world)[0]);
    if (m.dp == 1) continue;
    auto const gradients = [&](std::vector<std::string> const& more) {
      engine::Trainer<device::Fp32> trainer(make_config("fp32", m, more), world);
      trainer.mesh().along("dp").reset_accounting();
      trainer.step();
      return trainer.mesh().along("dp").accounting().bytes;
    };
    EXPECT_GT(gradients({}), 0);
    EXPECT_EQ(2 * gradients(narrow), gradients({}));
  }
}

/// Bytes that Kokkos has handed out and not taken back.
struct Counted {
  static inline std::int64_t bytes = 0;
  Kokkos::Tools::Experimental::EventSet before = Kokkos::Tools::Experimental::get_callbacks();
  Counted() {
    bytes = 0;
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, char const*, void const*, std::uint64_t n) {
          bytes += static_cast<std::int64_t>(n);
        });
    Kokkos::Tools::Experimental::set_deallocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, char const*, void const*, std::uint64_t n) {
          bytes -= static_cast<std::int64_t>(n);
        });
  }
  ~Counted() { Kokkos::Tools::Experimental::set_callbacks(before); }
};

TEST(Precision, MemoryIsWhatWasPredicted) {
  if (device::memory_is_guarded) GTEST_SKIP() << "the guard has these hooks";
  auto self = comm::Communicator::self();
  auto const measure = [&]<class P>(P, std::string const& precision, std::vector<std::string> more) {
    more.insert(more.end(), {"model.hidden=128", "model.ffn=256", "comm.allreduce=tree"});
    auto const config = make_config(precision, {}, more);
    engine::Trainer<P>(config, self).step();  // the scratch of Kokkos' teams, half a MiB, is kept from now on
    Counted counted;
    engine::Trainer<P> trainer(config, self);
    trainer.step();
    auto const memory = trainer.plan().memory_of(0);
    // What is not Kokkos' is not counted: panels, and what libraries take of a GPU.
    double const predicted = static_cast<double>(memory.total() - memory.panels - memory.libraries);
    double const found = static_cast<double>(Counted::bytes);
    EXPECT_NEAR(found, predicted, 0.01 * predicted) << precision;
    fmt::print("{}: {:.0f} bytes, predicted {:.0f}\n", precision, found, predicted);
    return found;
  };
  double const fp64 = measure(device::Fp64{}, "fp64", {}), fp32 = measure(device::Fp32{}, "fp32", {});
  double const bf16 = measure(device::Bf16{}, "bf16", {}), fp16 = measure(device::Fp16{}, "fp16", {});
  double const moments = measure(device::Bf16{}, "bf16", {"precision.moments=bf16"});
  EXPECT_LT(measure(device::Bf16Gradients{}, "bf16", {"precision.gradients=bf16"}), bf16);
  EXPECT_GT(fp64, 1.9 * fp32);
  EXPECT_EQ(bf16, fp16);
  EXPECT_LT(moments, bf16);
}

TEST(Precision, AnOverflowAtTheFloorEndsTheRun) {
  auto self = comm::Communicator::self();
  auto const overflow = [&]<class P>(P, std::string const& precision, std::vector<std::string> const& more) {
    engine::Trainer<P> trainer(make_config(precision, {}, more), self);
    trainer.step();
    trainer.inspection().spoil_gradient("embed.token.weight");
    trainer.step();
  };
  std::vector<std::string> const at_floor{"precision.loss_scale_initial=8", "precision.loss_scale_floor=8"};
  test::expect_error([&] { overflow(device::Fp16{}, "fp16", at_floor); }, "with a loss scale of 8, its floor");
  test::expect_error([&] { overflow(device::Fp16{}, "fp16", {"precision.loss_scale=8.0"}); },
                     "the gradient of embed.token.weight");
  test::expect_error([&] { overflow(device::Bf16{}, "bf16", {}); }, "the gradient of embed.token.weight");
}

/// All state that a checkpoint holds, as bytes.
template <class P>
std::vector<std::vector<char>> state(engine::Trainer<P>& trainer) {
  std::vector<std::vector<char>> out;
  for (auto const& part :
       trainer.checkpoint_parts(config::state_of(trainer.config().optimizer_with_versions()).arrays)) {
    auto const n = part.rows * part.cols;
    auto& bytes = out.emplace_back(static_cast<std::size_t>(n) * sizeof(typename P::Master));
    if (n > 0) part.copy_out(0, n, bytes.data());
  }
  return out;
}

/// Trains, moves the state into another trainer, and trains both on: the same bits.
template <class P>
void expect_goes_on(config::Config const& config, comm::Communicator const& world, bool overflow) {
  engine::Trainer<P> first(config, world), second(config, world);
  for (int s = 0; s < 6; ++s) {
    if (overflow && s % 3 == 2) first.inspection().spoil_gradient("final_norm.weight");
    first.step();
  }
  auto const saved = state(first);
  auto const parts = second.checkpoint_parts(config::state_of(config.optimizer_with_versions()).arrays);
  ASSERT_EQ(parts.size(), saved.size());
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!saved[i].empty()) parts[i].copy_in(0, parts[i].rows * parts[i].cols, saved[i].data());
  second.set_steps_done(first.steps_done());
  second.set_loss_scale(optim::parse_loss_scale(optim::to_string(first.loss_scale())));
  EXPECT_EQ(first.evaluate(1), second.evaluate(1));
  for (int s = 0; s < 4; ++s) {
    auto const a = first.step(), b = second.step();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.lr, b.lr);
    EXPECT_EQ(a.loss_scale, b.loss_scale);
  }
  EXPECT_EQ(state(first), state(second));
}

TEST(Precision, TheTypeOfTheTrainerIsThatOfTheInput) {
  auto self = comm::Communicator::self();
  test::expect_error([&] { engine::Trainer<device::Fp64> const trainer(make_config("fp32", {}), self); },
                     "an input for which with_policy chooses device::Fp64");
  test::expect_error(
      [&] { engine::Trainer<device::Bf16> const trainer(make_config("bf16", {}, {"precision.gradients=bf16"}), self); },
      "for which it chooses device::Bf16Gradients");
  auto const plan = engine::make_run_plan(make_config("fp32", {}));
  test::expect_error([&] { engine::Trainer<device::Fp32> const trainer(make_config("fp64", {}), plan, self); },
                     "run.precision = \"fp64\"");
}

TEST(Precision, GoesOnFromItsState) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  Mesh const m = n == 4 ? Mesh{2, 1, 2} : n == 2 ? Mesh{1, 2, 1} : Mesh{n, 1, 1};
  expect_goes_on<device::Bf16>(make_config("bf16", m), world, false);
  expect_goes_on<device::Bf16>(make_config("bf16", m, {"precision.stochastic_rounding=true", "precision.moments=bf16"}),
                               world, false);
  expect_goes_on<device::Bf16Gradients>(make_config("bf16", m, {"precision.gradients=bf16"}), world, false);
  expect_goes_on<device::Fp16>(
      make_config("fp16", m, {"precision.loss_scale_initial=64", "precision.loss_scale_interval=3"}), world, true);
  expect_goes_on<device::Fp32>(make_config("fp32", m, {"precision.moments=bf16"}), world, false);
}

}  // namespace
