// SPDX-License-Identifier: Apache-2.0
// comm.backend: trainings whose collectives go by NCCL, a fake one in host memory, agree with those by MPI; and where
// it is chosen, and refused. Trainings whose messages go through host copies, after kernels that end late, have the
// bits of those without.

#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/event.hpp>
#include <p3d/engine/memory_limits.hpp>

#include <support/errors.hpp>
#include <support/fake_nccl.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <p3d/engine/backend.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

config::Config make_config(Words const& more, int ranks) {
  Words const own{"model.heads=4",       "model.hidden=16",      "model.ffn=32",       "model.vocab_size=256",
                  "model.seq_len=8",     "model.layers=2",       "batch.micro=1",      "batch.global=8",
                  "optimizer.lr=1e-2",   "comm.bucket_mb=0.002", "run.precision=fp64", "run.deterministic=false",
                  "comm.allreduce=ring", test::licence_text()};
  return test::config_of(test::joined({own, more}), ranks);
}

/// Views are device memory to NCCL, and this is the NCCL.
class Backend : public ::testing::Test {
protected:
  void SetUp() override {
    if (!device::on_host()) GTEST_SKIP() << "the fake works in host memory";
  }
  Backend() {
    collectives::set_views_are_device(true);
    comm::detail::set_nccl_api(fake);
    comm::set_device_sums(sums);
  }
  ~Backend() override {
    EXPECT_EQ(fake->failures(), Words{});
    EXPECT_EQ(fake->groups, 0);
    comm::detail::set_nccl_api({});
    comm::set_device_sums({});
    device::set_before_fence(nullptr);
    collectives::set_views_are_device(false);
  }
  std::vector<double> train(Words const& more) {
    engine::Trainer<device::Fp64> trainer(make_config(more, world.size()), world);
    described = trainer.mesh().describe_all_reduce();
    return test::train(trainer, 3);
  }
  std::int64_t calls(std::string const& name) const { return std::count(fake->log.begin(), fake->log.end(), name); }

  comm::Communicator world = comm::Communicator::world();
  comm::Communicator of_the_fake = comm::Communicator::world();
  std::shared_ptr<test::FakeNccl> fake = std::make_shared<test::FakeNccl>(of_the_fake.mpi());
  std::shared_ptr<test::FakeSums> sums = std::make_shared<test::FakeSums>(fake);
  std::string described;
};

// The fake's groups have all ranks, so each mesh has one axis.
TEST_F(Backend, TrainsAsMpiDoes) {
  auto const n = std::to_string(world.size());
  struct Case {
    Words layout;
    Words calls;  ///< that must be NCCL's
  };
  Words const moe{"model.moe.experts=4", "model.moe.top_k=2"};
  std::vector<Case> const cases{
      {{"parallel.dp=" + n}, {"all_reduce"}},
      {{"parallel.dp=" + n, "memory.shard=parameters"}, {"reduce", "broadcast"}},
      {{"parallel.tp=" + n}, {"all_reduce"}},
      {{"parallel.tp=" + n, "parallel.sequence=true"}, {"reduce_scatter", "all_gather"}},
      {{"parallel.dp=" + n, "parallel.ep=" + n, moe[0], moe[1]}, {"all_reduce", "send", "recv"}},
      {{"parallel.dp=" + n, "parallel.ep=" + n, moe[0], moe[1], "model.moe.dispatch=gather"}, {"send", "recv"}},
  };
  if (world.size() == 1) GTEST_SKIP() << "nothing travels";
  for (auto const& each : cases) {
    auto const &layout = each.layout, &wanted = each.calls;  // Clang before 16 captures no structured binding
    auto const named = [&](char const* backend) {
      auto words = layout;
      words.push_back(std::string("comm.backend=") + backend);
      return words;
    };
    fake->log.clear();
    auto const by_mpi = train(named("mpi"));
    EXPECT_EQ(fake->log, Words{}) << "MPI was asked for";
    EXPECT_EQ(described.find("nccl"), std::string::npos) << described;
    auto const by_nccl = train(named("auto"));
    EXPECT_NE(described.find("nccl (host memory: ring)"), std::string::npos) << described;
    for (auto const& call : wanted) EXPECT_GT(calls(call), 0) << layout.front() << ": " << call;
    ASSERT_EQ(by_nccl.size(), by_mpi.size());
    for (std::size_t i = 0; i < by_mpi.size(); ++i)
      ASSERT_NEAR(by_nccl[i], by_mpi[i], 1e-10 * (1.0 + std::abs(by_mpi[i]))) << layout.front() << ", number " << i;
  }
}

// run.deterministic: the sums of p3d's ring in host memory, bit for bit.
TEST_F(Backend, SumsInTheOrderOfRanks) {
  if (world.size() == 1) GTEST_SKIP() << "nothing travels";
  auto const n = std::to_string(world.size());
  std::vector<Words> const layouts{{"parallel.dp=" + n},
                                   {"parallel.dp=" + n, "memory.shard=gradients"},
                                   {"parallel.tp=" + n},
                                   {"parallel.tp=" + n, "parallel.sequence=true"}};
  for (auto const& layout : layouts) {
    auto words = layout;
    words.insert(words.end(), {"run.deterministic=true", "comm.backend=mpi"});
    auto const by_host = train(words);
    fake->log.clear();
    sums->additions = 0;
    words.back() = "comm.backend=auto";
    EXPECT_EQ(train(words), by_host) << layout.front() << ' ' << layout.back();
    EXPECT_GT(sums->additions, 0);
    EXPECT_EQ(calls("all_reduce") + calls("reduce") + calls("reduce_scatter"), 0) << "NCCL adds nothing";
    EXPECT_NE(described.find("nccl in order of ranks"), std::string::npos) << described;
  }
}

TEST_F(Backend, IsMpiAlongOtherAxes) {
  if (world.size() == 1) GTEST_SKIP() << "nothing travels";
  train({"parallel.dp=" + std::to_string(world.size()), "comm.backend_axes=tp"});
  EXPECT_EQ(fake->log, Words{});
  EXPECT_EQ(described, "dp ring");
}

TEST_F(Backend, IsChosenWhereItCanBe) {
  auto const choice = [&](config::Backend backend, bool deterministic = false) {
    config::Config c;
    c.comm.backend = backend;
    c.run.deterministic = deterministic;
    return engine::choose_nccl(c, world);
  };
  using config::Backend;
  bool const several = world.size() > 1;
  EXPECT_EQ(choice(Backend::automatic), several);
  EXPECT_EQ(choice(Backend::nccl), several);
  EXPECT_FALSE(choice(Backend::mpi));
  comm::set_device_sums(nullptr);
  device::set_before_fence(nullptr);
  EXPECT_EQ(choice(Backend::automatic, true), several);
  EXPECT_EQ(comm::has_device_sums(), several) << "who chooses NCCL can prepare communicators with sums in order";
  EXPECT_EQ(device::detail::before_fence != nullptr, several) << "fences wait for NCCL within comm.timeout_s";
  fake->shares_gpu = true;
  EXPECT_FALSE(choice(Backend::automatic));
  if (several) test::expect_error([&] { choice(Backend::nccl); }, "two ranks on the same GPU");
  collectives::set_views_are_device(false);
  EXPECT_FALSE(choice(Backend::automatic));
  if constexpr (device::host_reaches_views)
    test::expect_error([&] { choice(Backend::nccl); }, "kernels on the host (Kokkos' ");
}

TEST(GpuMemory, OfRanksThatShareAGpuIsAdded) {
  auto world = comm::Communicator::world();
  bool const several = world.size() > 1;
  auto const own = "bus " + std::to_string(world.rank());
  auto const ends = [&](std::int64_t bytes, engine::GpuRoom const& room) {
    try {
      engine::require_gpu_memory(bytes, room, world);
      return true;
    } catch (base::ReportedError const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      return false;
    }
  };
  EXPECT_TRUE(ends(100, {own, 100, 200}));
  EXPECT_FALSE(ends(101, {own, 100, 200}));
  EXPECT_EQ(ends(60, {"bus 0", 100, 200}), !several);
  EXPECT_TRUE(ends(60, {own, 100, 200}));
  EXPECT_TRUE(ends(60, {"bus 0", 0, 0})) << "not known: not refused";
  if (device::on_host()) {
    EXPECT_EQ(engine::gpu_room().total, 0);
  }
}

TEST(LateKernels, LeaveEveryBitAsItIs) {
  auto world = comm::Communicator::world();
  if (world.size() == 1) GTEST_SKIP() << "nothing travels";
  auto const n = std::to_string(world.size());
  auto const train = [&](Words const& layout) {
    engine::Trainer<device::Fp64> trainer(make_config(layout, world.size()), world);
    return test::train(trainer, 2);
  };
  std::vector<Words> const layouts{
      {"parallel.dp=" + n, "memory.shard=parameters"},
      {"parallel.tp=" + n, "parallel.sequence=true"},
      {"parallel.pp=" + n, "model.layers=4"},
      {"parallel.pp=" + n, "model.layers=4", "pipeline.vocab_parallel=true"},
      {"parallel.cp=" + n},
      {"parallel.dp=" + n, "parallel.ep=" + n, "model.moe.experts=4", "model.moe.top_k=2"}};
  for (auto const& layout : layouts) {
    auto const plain = train(layout);
    collectives::set_always_stage(true);
    device::set_late_events(3 + world.rank());
    auto const late = train(layout);
    device::set_late_events(0);
    collectives::set_always_stage(false);
    EXPECT_EQ(late, plain) << layout.front() << ' ' << layout.back();
  }
}

}  // namespace
