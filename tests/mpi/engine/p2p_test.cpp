// SPDX-License-Identifier: Apache-2.0
// How messages between stages start (pipeline.p2p): every bit of a training is the same with each of its values, beside
// whatever else a pipeline does.

#include <p3d/collectives/collectives.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/text/indexed_dataset_writer.hpp>

#include <support/errors.hpp>
#include <support/mpi_kokkos_main.hpp>
#include <support/temp_dir.hpp>

#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using test::Keys;

config::Config make_config(Keys const& more, int ranks) {
  Keys const own{"batch.micro=1",     "batch.global=8",      "model.dropout=0.1",
                 "optimizer.lr=1e-2", "comm.bucket_mb=0.01", test::licence_text()};
  return test::config_of(test::joined({test::tiny_model(4), own, more}), ranks);
}

/// Layouts on so many ranks.
std::vector<std::string> layouts(int ranks) {
  static std::map<int, std::vector<std::string>> const by_ranks{
      {2,
       {"parallel.pp=2 pipeline.schedule=1f1b", "parallel.pp=2 pipeline.schedule=gpipe pipeline.lookahead=0",
        "parallel.pp=2 pipeline.schedule=interleaved_1f1b model.tied_embeddings=true",
        "parallel.pp=2 pipeline.schedule=zb_h1 precision.pipeline=bf16",
        "parallel.pp=2 pipeline.schedule=looped_bfs memory.recompute=full",
        "parallel.pp=2 pipeline.schedule=zb_v pipeline.vocab_parallel=true",
        "parallel.pp=2 pipeline.schedule=looped_bfs batch.global=12 memory.offload_activations=disk",
        "parallel.pp=2 pipeline.weight_deferral_limit=2 pipeline.lookahead=3"}},
      {3,
       {"parallel.pp=3 pipeline.schedule=1f1b model.layers=6", "parallel.pp=3 pipeline.schedule=gpipe model.layers=3",
        "parallel.pp=3 pipeline.schedule=interleaved_1f1b model.layers=6 batch.global=9",
        "parallel.pp=3 pipeline.schedule=zb_h1 model.layers=5 pipeline.layers_per_stage=[1,3,1]",
        "parallel.pp=3 pipeline.schedule=looped_bfs model.layers=6 memory.offload_activations=disk",
        "parallel.pp=3 pipeline.schedule=v_min model.layers=6 pipeline.vocab_parallel=true"}},
      {4,
       {"parallel.pp=4 pipeline.schedule=1f1b model.tied_embeddings=true",
        "parallel.pp=4 pipeline.schedule=looped_bfs model.layers=8",
        "parallel.pp=4 pipeline.schedule=interleaved_1f1b model.layers=8 pipeline.lookahead=0",
        "parallel.pp=2 parallel.dp=2 pipeline.schedule=zb_h1 memory.shard=parameters",
        "parallel.pp=2 parallel.tp=2 parallel.sequence=true pipeline.schedule=zb_v",
        "parallel.pp=2 parallel.cp=2 pipeline.schedule=gpipe",
        "parallel.pp=2 parallel.ep=2 parallel.dp=2 model.moe.experts=4 model.moe.top_k=2 comm.overlap_experts=true"}}};
  return by_ranks.at(ranks);
}

template <class P>
std::vector<double> train(Keys const& keys, comm::Communicator const& world) {
  engine::Trainer<P> trainer(make_config(keys, world.size()), world);
  return test::train(trainer, 3);
}

TEST(P2p, KeepsEveryBit) {
  auto const world = comm::Communicator::world();
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(layout);
    auto const with = [&](char const* p2p) {
      return train<device::Fp32>(
          test::joined({Keys{"model.preset=llama-tiny", "model.tied_embeddings=false", "run.precision=fp32"},
                        test::words_of(layout), Keys{fmt::format("pipeline.p2p={}", p2p)}}),
          world);
    };
    auto const separate = with("separate");
    EXPECT_EQ(with("batched"), separate);
    EXPECT_EQ(with("ring"), separate);
    if (HasFailure()) return;
  }
}

// Samples of their own lengths: messages have the size of their microbatch.
TEST(P2p, KeepsEveryBitOfShortSamples) {
  auto const world = comm::Communicator::world();
  auto const temp = world.rank() == 0 ? std::make_unique<test::TempDir>() : nullptr;
  std::string path = temp ? *temp / "documents" : "";
  auto own = comm::Communicator(world.mpi(), "test");
  if (temp) {
    text::IndexedDatasetWriter writer(path, text::TokenType::u16);
    std::vector<std::int32_t> tokens;
    for (int d = 0; d < 60; ++d) {
      tokens.assign(static_cast<std::size_t>(2 + 7 * d % 11), 3 * d % 61);
      writer.add_document(tokens);
    }
    writer.finish();
  }
  comm::broadcast_text(own, path, 0);
  for (char const* schedule : {"1f1b", "gpipe", "interleaved_1f1b"}) {
    SCOPED_TRACE(schedule);
    auto const with = [&](char const* p2p) {
      return train<device::Fp32>(
          {"model.preset=llama-tiny", "model.layers=8", fmt::format("parallel.pp={}", world.size()),
           fmt::format("pipeline.p2p={}", p2p), fmt::format("pipeline.schedule={}", schedule), "run.precision=fp32",
           "batch.global=12", "batch.variable=true", "data.format=megatron", fmt::format("data.path=\"{}\"", path),
           "data.shuffle=documents", "data.split=0.2"},
          world);
    };
    auto const separate = with("separate");
    EXPECT_EQ(with("batched"), separate);
    EXPECT_EQ(with("ring"), separate);
  }
  own.barrier().wait();
}

// As with memory that the host does not reach: messages start from copies.
TEST(P2p, KeepsEveryBitThroughHostCopies) {
  auto const world = comm::Communicator::world();
  for (char const* p2p : {"batched", "ring"}) {
    Keys const keys{"model.preset=llama-tiny", fmt::format("parallel.pp={}", world.size()),
                    fmt::format("pipeline.p2p={}", p2p), "pipeline.schedule=1f1b", "run.precision=fp32"};
    auto const plain = train<device::Fp32>(keys, world);
    collectives::set_always_stage(true);
    auto const staged = train<device::Fp32>(keys, world);
    collectives::set_always_stage(false);
    EXPECT_EQ(staged, plain) << p2p;
  }
}

// What begins before a step has ended: an opening that is abandoned, and steps without a flush.
TEST(P2p, BatchedMessagesCrossTheEndsOfSteps) {
  auto const world = comm::Communicator::world();
  for (char const* more : {"optimizer.post_validation=true optimizer.grad_clip=0.01",
                           "optimizer.delay=1 pipeline.flush=never model.dropout=0"}) {
    SCOPED_TRACE(more);
    auto const with = [&](char const* p2p) {
      return train<device::Fp64>(
          test::joined({Keys{"model.preset=llama-tiny", "run.precision=fp64", "model.tied_embeddings=false",
                             fmt::format("parallel.pp={}", world.size()), fmt::format("pipeline.p2p={}", p2p)},
                        test::words_of(more)}),
          world);
    };
    EXPECT_EQ(with("batched"), with("separate"));
  }
}

// One call carries a send and a receive, or all of a round: the number of messages and of bytes stays, that of rounds
// is as planned.
TEST(P2p, SendsTheSameBytes) {
  auto const world = comm::Communicator::world();
  std::map<std::string, std::int64_t> bytes;
  for (char const* p2p : {"separate", "batched", "ring"}) {
    Keys const keys{"model.preset=llama-tiny", fmt::format("parallel.pp={}", world.size()),
                    fmt::format("pipeline.p2p={}", p2p), "run.precision=fp32"};
    engine::Trainer<device::Fp32> trainer(make_config(keys, world.size()), world);
    auto const sent = [&] { return trainer.mesh().along("pp").accounting().sent.messages; };
    trainer.step();
    auto const before = sent();
    trainer.step();
    bytes[p2p] = sent() - before;
    EXPECT_EQ(trainer.plan().training.rounds().ranks.empty(), std::string(p2p) != "ring");
  }
  EXPECT_GT(bytes["separate"], 0);
  EXPECT_EQ(bytes["batched"], bytes["separate"]);
  EXPECT_EQ(bytes["ring"], 0) << "the ring has a communicator of its own";
}

}  // namespace
