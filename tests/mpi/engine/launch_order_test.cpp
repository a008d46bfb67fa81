// SPDX-License-Identifier: Apache-2.0
// Whole trainings over several communicators of NCCL at once, by a library in its place that runs collectives in the
// order of their launches and finds ranks that wait for each other: the order that p3d launches in has no circle, calls
// that come late onto their streams included, and the numbers are those by MPI.

#include <p3d/collectives/collectives.hpp>

#include <support/fake_nccl_library_api.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

std::vector<double> train(comm::Communicator& world, Words const& more, int steps) {
  Words words{"model.heads=4",     "model.hidden=16",      "model.ffn=32",       "model.vocab_size=256",
              "model.seq_len=8",   "model.layers=4",       "batch.micro=1",      "batch.global=4",
              "optimizer.lr=1e-2", "comm.bucket_mb=0.002", "run.precision=fp64", "comm.allreduce=ring",
              test::licence_text()};
  words.insert(words.end(), more.begin(), more.end());
  engine::Trainer<device::Fp64> trainer(test::config_of(words, world.size()), world);
  std::vector<double> out;
  for (int s = 0; s < steps; ++s) {
    auto const result = trainer.step();
    out.push_back(result.loss);
    out.push_back(result.grad_norm);
  }
  return out;
}

class LaunchOrder : public ::testing::Test {
protected:
  LaunchOrder() { collectives::set_views_are_device(true); }
  ~LaunchOrder() override { collectives::set_views_are_device(false); }
  std::vector<Words> layouts() const {
    if (world.size() == 4) {
      return {{"parallel.dp=2", "parallel.tp=2"},
              {"parallel.dp=2", "parallel.tp=2", "parallel.sequence=true", "memory.shard=gradients"},
              {"parallel.dp=2", "parallel.pp=2", "memory.shard=parameters"},
              {"parallel.tp=2", "parallel.cp=2"},
              {"parallel.dp=4", "parallel.ep=2", "model.moe.experts=4", "model.moe.top_k=2"}};
    }
    return {{"parallel.dp=2", "parallel.tp=2", "parallel.pp=2"},
            {"parallel.dp=2", "parallel.tp=2", "parallel.pp=2", "pipeline.schedule=interleaved_1f1b",
             "pipeline.virtual_stages=2", "memory.shard=gradients", "parallel.sequence=true"},
            {"parallel.dp=2", "parallel.tp=2", "parallel.cp=2", "memory.shard=parameters"}};
  }
  comm::Communicator world = comm::Communicator::world();
};

TEST_F(LaunchOrder, OfTrainingsHasNoCircle) {
  if (device::memory_is_guarded) GTEST_SKIP() << "the guard knows nothing of the threads of this library";
  test::LibraryInUse const library(world);
  // Each communicator's calls come onto their stream after another time, which differs between ranks.
  for (int i = 0; i < 16; ++i) fake_nccl_delay(i, 40 * ((3 * i + 5 * world.rank()) % 7));
  for (auto const& layout : layouts()) {
    for (auto const* deterministic : {"run.deterministic=true", "run.deterministic=false"}) {
      if (deterministic == std::string("run.deterministic=false") && layout != layouts().front()) continue;
      auto words = layout;
      words.insert(words.end(), {deterministic, "comm.backend=mpi"});
      auto const by_mpi = train(world, words, 2);
      words.back() = "comm.backend=auto";
      auto const by_nccl = train(world, words, 2);
      ASSERT_EQ(by_nccl.size(), by_mpi.size());
      bool const same_bits = deterministic == std::string("run.deterministic=true");
      for (std::size_t i = 0; i < by_mpi.size(); ++i)
        ASSERT_NEAR(by_nccl[i], by_mpi[i], same_bits ? 0.0 : 1e-10 * (1.0 + std::abs(by_mpi[i])))
            << layout.back() << ", " << deterministic << ", number " << i;
    }
  }
}

// Gradients are summed over dp while tp's sums go on: with an engine a communicator that launches for itself, as p3d's
// once did, a dp call that comes late onto its stream is overtaken, here on ranks 0 and 3. Must be found (exit code
// 86).
TEST_F(LaunchOrder, DISABLED_OfHastyEnginesHasOne) {
  ASSERT_EQ(world.size(), 4);
  test::LibraryInUse const library(world, std::make_shared<test::HastyApi>());
  // On a busy machine tp's next sum comes only after a while: each training waits twice as long with dp's.
  for (int milliseconds = 2; milliseconds <= 256; milliseconds *= 2) {
    if (world.rank() % 3 == 0) fake_nccl_delay(fake_nccl_made() + 1, 1000 * milliseconds);
    train(world, {"parallel.dp=2", "parallel.tp=2", "parallel.order=\"tp-dp\""}, 2);
  }
  FAIL() << "no circle was found";
}

}  // namespace
