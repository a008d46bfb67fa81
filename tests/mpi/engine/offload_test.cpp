// SPDX-License-Identifier: Apache-2.0
// Activations that wait on a disk (memory.offload_activations): every bit is that of a run which keeps them, at most
// two microbatches of a stage are in memory, and memory and file are to the byte what was predicted.

#include <p3d/engine/trainer.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>

#include <support/errors.hpp>
#include <support/mpi_kokkos_main.hpp>
#include <support/temp_dir.hpp>

#include <device/swap_hooks.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;

using Keys = std::vector<std::string>;

config::Config make_config(Keys const& more, int ranks) {
  Keys const own{"batch.micro=1", "model.dropout=0.1", "optimizer.lr=1e-2", "optimizer.grad_clip=0.5",
                 test::licence_text()};
  return test::config_of(test::joined({test::tiny_model(4), own, more}), ranks);
}

/// Actions OFFLOAD_F of a plan.
int moves(engine::RunPlan const& plan) {
  int sum = 0;
  for (auto const& list : plan.training->ranks)
    for (auto const& a : list) sum += a.op == schedule::Op::offload_activations;
  return sum;
}

template <class P>
std::vector<double> train(config::Config const& config, comm::Communicator const& world) {
  engine::Trainer<P> trainer(config, world);
  auto const out = test::train(trainer, 3);
  auto const used = trainer.memory_in_use();
  auto const predicted = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
  EXPECT_EQ(used.activations, predicted.activations);
  EXPECT_EQ(used.offloaded_activations, predicted.offloaded_activations);
  EXPECT_EQ(trainer.inspection().activation_high_water(), trainer.inspection().activation_capacity());
  return out;
}

struct Case {
  Keys layout;
  int ranks;
  int slots = 2;  ///< of a stage, at the most
};

std::vector<Case> const& cases() {
  static std::vector<Case> const all{
      {{"pipeline.schedule=gpipe", "batch.global=4"}, 1},
      {{"pipeline.schedule=looped_bfs", "batch.global=4", "model.preset=llama-tiny", "model.layers=4"}, 1},
      {{"pipeline.schedule=looped_bfs", "batch.global=4", "pipeline.layers_per_stage=[0, 4]"}, 1},
      {{"pipeline.schedule=looped_bfs", "batch.global=4", "pipeline.layers_per_stage=[4, 0]"}, 1},
      // In a row of more than two stages some are reloaded and not used.
      {{"pipeline.schedule=looped_bfs", "pipeline.virtual_stages=4", "batch.global=4", "model.layers=4"}, 1},
      {{"parallel.pp=2", "pipeline.schedule=gpipe", "batch.global=6", "model.preset=llama-tiny", "model.layers=4"}, 2},
      {{"parallel.pp=2", "pipeline.schedule=interleaved_1f1b", "batch.global=6"}, 2},
      {{"parallel.pp=2", "pipeline.schedule=zb_v", "batch.global=6"}, 2},
      {{"parallel.pp=2", "pipeline.schedule=zb_v", "batch.global=6", "pipeline.layers_per_stage=[0, 2, 2, 0]"}, 2},
      {{"parallel.tp=2", "pipeline.schedule=gpipe", "batch.global=4"}, 2},
      {{"parallel.pp=3", "pipeline.schedule=1f1b", "batch.global=7"}, 3},
      {{"parallel.pp=3", "pipeline.schedule=zb_h1", "batch.global=7"}, 3},
      {{"parallel.pp=4", "pipeline.schedule=1f1b", "batch.global=8"}, 4},
      {{"parallel.pp=4", "pipeline.schedule=zb_h2", "batch.global=8"}, 4, 3},
      {{"parallel.pp=4", "pipeline.schedule=looped_bfs", "batch.global=8", "model.layers=8"}, 4, 3},
      {{"parallel.dp=2", "parallel.pp=2", "pipeline.schedule=dualpipe_v", "batch.global=16"}, 4},
      {{"parallel.tp=2", "parallel.pp=3", "pipeline.schedule=zb_v", "model.layers=6", "batch.global=7"}, 6},
      {{"parallel.pp=8", "pipeline.schedule=1f1b", "model.layers=8", "batch.global=10"}, 8},
      {{"parallel.dp=2", "parallel.tp=2", "parallel.pp=2", "pipeline.schedule=interleaved_1f1b", "batch.global=8"}, 8},
  };
  return all;
}

template <class P>
void same_bits(char const* precision) {
  auto world = comm::Communicator::world();
  int ran = 0;
  for (auto const& c : cases()) {
    if (c.ranks != world.size()) continue;
    SCOPED_TRACE(fmt::format("{}, {}", fmt::join(c.layout, " "), precision));
    auto const with = [&](Keys more) {
      more.insert(more.begin(), c.layout.begin(), c.layout.end());
      more.push_back(std::string("run.precision=") + precision);
      return make_config(more, c.ranks);
    };
    auto const kept = train<P>(with({}), world);
    bool const fp64 = std::string(precision) == "fp64";
    std::vector<Keys> settings{{}, {"memory.recompute=full"}};
    if (fp64) {  // these differ in places that know no types
      settings.push_back({"memory.recompute=[\"norm\", \"activation\"]", "pipeline.lookahead=2"});
      settings.push_back({"memory.recompute=full", "memory.recompute_group=2", "memory.offload_optimizer=disk"});
    }
    if (c.layout.front() == "parallel.tp=2") {
      settings.push_back({"memory.recompute=full", "memory.share_saved_inputs=true"});
      if (fp64) settings.push_back({"memory.recompute=full", "memory.recompute_communication=false"});
    }
    if (c.layout.front() == "parallel.dp=2") {
      settings.push_back({"memory.shard=parameters", "memory.shard_layers=1"});
      if (fp64) settings.push_back({"memory.shard=parameters", "memory.gather=microbatch", "memory.recompute=full"});
    }
    if (c.ranks == 8 && !fp64) settings.resize(1);  // so many ranks share few cores
    for (auto keys : settings) {
      SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
      keys.push_back("memory.offload_activations=disk");
      auto const config = with(keys);
      auto const plan = engine::make_run_plan(config);
      bool const ahead = config.pipeline.lookahead == 2;
      EXPECT_TRUE(ahead || moves(plan) > 0) << "something waits";
      for (auto const& sets : plan.activations) EXPECT_LE(sets.slots, c.slots + (ahead ? 1 : 0));
      EXPECT_EQ(train<P>(config, world), kept);
    }
    ++ran;
  }
  EXPECT_GE(ran, 1);
}

// Without norms in front, weight gradients read a stage's input, whose place the stage before may have given away.
TEST(Offload, WeightGradientsOfNormsBehindReadTheirOwnInput) {
  auto world = comm::Communicator::world();
  if (world.size() != 2) return;
  for (Keys schedule : {Keys{"pipeline.schedule=zb_h2", "memory.gather=microbatch"},
                        Keys{"pipeline.schedule=1f1b", "pipeline.weight_deferral_limit=8"}}) {
    Keys keys{"parallel.pp=2",        "batch.global=16",       "model.norm_placement=post",     "run.precision=fp64",
              "pipeline.lookahead=0", "memory.shard_layers=1", "memory.offload_parameters=disk"};
    keys.insert(keys.end(), schedule.begin(), schedule.end());
    auto const kept = train<device::Fp64>(make_config(keys, 2), world);
    keys.push_back("memory.offload_activations=disk");
    EXPECT_EQ(train<device::Fp64>(make_config(keys, 2), world), kept) << schedule.front();
  }
}

// The first stage of a rank reads its next microbatch before the second one has made its weight gradients.
TEST(Offload, WeightGradientsMayComeAfterAnotherForward) {
  auto world = comm::Communicator::world();
  if (world.size() != 1) return;
  test::TempDir const folder;
  auto const path = (std::filesystem::path(folder.path()) / "late.csv").string();
  std::ofstream(path) << "0F0,1F0,1I0,0B0,0F1,1F1,1W0,1I1,0B1,0F2,1F2,1W1,1I2,0B2,0F3,1F3,1W2,1I3,0B3,1W3\n";
  for (std::string const placement : {"pre", "post", "sandwich"}) {
    Keys keys{"batch.global=4", "run.precision=fp64", "model.norm_placement=" + placement};
    auto const plain = train<device::Fp64>(make_config(keys, 1), world);
    keys.insert(keys.end(), {"pipeline.schedule=file", "pipeline.file=" + path});
    auto const late = train<device::Fp64>(make_config(keys, 1), world);
    ASSERT_EQ(late.size(), plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      ASSERT_NEAR(late[i], plain[i], 1e-10 * std::max(1.0, std::abs(plain[i]))) << placement << ", number " << i;
  }
}

TEST(Offload, ChangesNoBitInFp64) { same_bits<device::Fp64>("fp64"); }
TEST(Offload, ChangesNoBitInFp32) { same_bits<device::Fp32>("fp32"); }
#if P3D_16BIT
TEST(Offload, ChangesNoBitInBf16) {
  if (comm::Communicator::world().size() <= 3) same_bits<device::Bf16>("bf16");
}

// Narrow messages have buffers of their own in the slot, which do not move.
TEST(Offload, ChangesNoBitOfNarrowMessages) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  if (n == 1 || n > 4) return;
  for (char const* schedule : {"gpipe", "zb_h1"}) {
    Keys keys{fmt::format("parallel.pp={}", n), fmt::format("pipeline.schedule={}", schedule), "batch.global=8",
              "run.precision=fp32", "precision.pipeline=bf16"};
    auto const kept = train<device::Fp32>(make_config(keys, n), world);
    keys.push_back("memory.offload_activations=disk");
    EXPECT_EQ(train<device::Fp32>(make_config(keys, n), world), kept) << schedule;
  }
}
#endif

// What waits is what a slot keeps for its backward, neither the gradient nor an output that was sent.
TEST(Offload, FileHoldsWhatWaits) {
  auto const config = make_config({"parallel.pp=4", "pipeline.schedule=1f1b", "batch.global=8", "run.precision=fp32",
                                   "memory.offload_activations=disk", "memory.recompute=full"},
                                  4);
  auto const plan = engine::make_run_plan(config);
  // Rank 0 has four microbatches between F and B, of which two at least are in memory. Of each wait the one layer's
  // input, 8 tokens of 16 numbers, and the tokens.
  auto const away = schedule::offloaded_activations(plan.training);
  EXPECT_EQ(away[0].places, plan.activations[0].offload_places);
  EXPECT_GE(away[0].places, 2);
  EXPECT_EQ(away[3].places, 0) << "the last rank's backward follows its forward";
  static_assert(4 * 8 * 16 + 4 * 8 <= 4096);
  EXPECT_EQ(plan.memory_of(0).offloaded_activations, 4096 * away[0].places);
  EXPECT_EQ(plan.memory_of(3).offloaded_activations, 0);
}

/// A disk that fails, for as long as it lives.
class BadDisk {
public:
  BadDisk() { hooks() = {}; }
  ~BadDisk() { hooks() = {}; }
  BadDisk(BadDisk const&) = delete;
  BadDisk& operator=(BadDisk const&) = delete;
  static device::detail::SwapHooks& hooks() { return device::detail::swap_hooks(); }
  Keys keys() const {
    return {"pipeline.schedule=gpipe", "batch.global=5", "run.precision=fp32", "memory.offload_activations=disk",
            "memory.offload_dir=\"" + folder.path().string() + "\""};
  }
  /// Overwrites the first bytes of every block of the files in the folder that this process has open.
  void damage() const {
    for (auto const& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      auto const to = std::filesystem::read_symlink(entry, error).string();
      if (error || !to.starts_with(folder.path().string() + "/")) continue;
      int const fd = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      for (off_t at = 0; at < ::lseek(fd, 0, SEEK_END); at += 4096) EXPECT_EQ(::pwrite(fd, "damaged", 7, at), 7);
      EXPECT_EQ(::fsync(fd), 0);
      ::close(fd);
      return;
    }
  }
  test::TempDir folder;
};

// All ranks hear of it, from one that has no room, before the first step.
TEST(Offload, FullDiskIsSaidAtTheStart) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  auto const config = make_config({"pipeline.schedule=gpipe", "run.precision=fp32", "memory.offload_activations=disk",
                                   fmt::format("parallel.dp={}", n), fmt::format("batch.global={}", 5 * n)},
                                  n);
  BadDisk const disk;
  if (world.rank() == n - 1) BadDisk::hooks().free_bytes = 4096;
  test::expect_error([&] { engine::Trainer<device::Fp32>(config, world); }, "4.00 KiB free");
  BadDisk::hooks() = {};
  engine::Trainer<device::Fp32> trainer(config, world);
  EXPECT_GT(trainer.memory_in_use().offloaded_activations, 0);
}

TEST(Offload, DamageIsFound) {
  auto world = comm::Communicator::world();
  if (world.size() > 1) return;
  BadDisk const disk;
  auto const on = std::make_shared<std::atomic<bool>>(false);  // the file's thread may outlive the trainer
  BadDisk::hooks().before_piece = [&disk, on] {
    if (*on) disk.damage();
  };
  engine::Trainer<device::Fp32> trainer(make_config(disk.keys(), 1), world);
  trainer.step();
  *on = true;
  test::expect_error([&] { trainer.step(); }, "damaged ones");
}

// Whatever is still on its way to the disk is not written over: not by a message either.
TEST(Offload, SlowDiskChangesNoBit) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  if (n == 1 || n > 4) return;
  for (char const* schedule : {"gpipe", "zb_h2", "zb_v"}) {
    Keys keys{fmt::format("parallel.pp={}", n), fmt::format("pipeline.schedule={}", schedule), "batch.global=7",
              "model.layers=8", "run.precision=fp32"};
    auto const kept = train<device::Fp32>(make_config(keys, n), world);
    keys.push_back("memory.offload_activations=disk");
    BadDisk const disk;
    BadDisk::hooks().before_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(4)); };
    EXPECT_EQ(train<device::Fp32>(make_config(keys, n), world), kept) << schedule;
  }
}

TEST(Offload, SlowDiskIsWaitedForNoLongerThanAFileMayTake) {
  auto world = comm::Communicator::world();
  if (world.size() > 1) return;
  BadDisk const disk;
  auto const on = std::make_shared<std::atomic<bool>>(false);  // the file's thread may outlive the trainer
  BadDisk::hooks().before_piece = [on] {
    if (*on) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  auto keys = disk.keys();
  keys.push_back("run.file_timeout_s=0.3");
  engine::Trainer<device::Fp32> trainer(make_config(keys, 1), world);
  trainer.step();
  *on = true;
  try {
    trainer.step();
    ADD_FAILURE() << "a disk that takes a second is too slow";
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::timeout);
    EXPECT_NE(e.text().fix.find("memory.offload_dir"), std::string::npos) << e.what();
  }
  *on = false;
}

}  // namespace
