// SPDX-License-Identifier: Apache-2.0
// batch.variable: samples of their own lengths, in every kind of layout, against one rank that runs each sample alone
// (batch.micro = 1: nothing is padded). Documents of 2 tokens, of a window, and longer ones.
//
//   mpiexec -n N invariance_variable [--sabotage]
//
// Exit code 1 when a loss is off by more than 1e-9, or a gradient by more than 1e-12 (see deviations()).

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/text/indexed_dataset_writer.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

constexpr int steps = 5;

/// Token files with documents of chosen and of random lengths.
void write_documents(std::string const& prefix) {
  std::mt19937 random(7);
  text::IndexedDatasetWriter writer(prefix, text::TokenType::u16);
  std::vector<std::int32_t> tokens;
  for (int d = 0; d < 120; ++d) {
    constexpr int chosen[]{2, 3, 25, 24, 26, 49, 70, 4};
    auto const length = d < 8 ? chosen[d] : 2 + static_cast<int>(random() % 40);
    tokens.clear();
    for (int i = 0; i < length; ++i) tokens.push_back(static_cast<std::int32_t>(random() % 61));
    writer.add_document(tokens);
  }
  writer.finish();
}

config::Config make_config(std::string const& path, Words const& model, Words const& layout, int ranks) {
  Words const words{"data.format=megatron",
                    "data.path=\"" + path + "\"",
                    "data.shuffle=documents",
                    "data.split=0.2",
                    "batch.variable=true",
                    "batch.global=12",
                    "model.vocab_size=61",
                    "model.layers=4",
                    "model.heads=4",
                    "model.hidden=32",
                    "model.seq_len=24",
                    "run.precision=fp64",
                    fmt::format("run.steps={}", steps),
                    "run.eval_batches=1",
                    "optimizer.lr=1e-3",
                    "optimizer.warmup_steps=2",
                    "comm.bucket_mb=0.02"};
  return p3d::test::config_of(p3d::test::joined({words, model, layout}), ranks);
}

/// Splits of the ranks, each with something else that must go with it, in turn.
std::vector<Words> layouts(int ranks) {
  std::vector<Words> out;
  std::size_t turn = 0;
  std::vector<Words> const others{
      {"batch.micro=1"},
      {"batch.micro=3", "memory.recompute=full", "optimizer.post_validation=true"},
      {"batch.micro=2", "memory.shard=parameters"},  // where there are replicas
      {"batch.micro=1", "pipeline.lookahead=2", "memory.recompute=[\"attention\", \"norm\"]"},
      {"batch.micro=2", "memory.recompute=full", "memory.shard=gradients"}};
  std::vector<std::string> const schedules{"1f1b", "zb_h1", "interleaved_1f1b", "gpipe", "zb_v"};
  for (int tp : {1, 2})
    for (int cp : {1, 2, 4})
      for (int pp : {1, 2}) {
        if (ranks % (tp * cp * pp) != 0) continue;
        int const dp = ranks / (tp * cp * pp);
        if (dp > 2 && ranks != dp) continue;
        for (std::size_t i = 0; i < (pp > 1 ? (ranks > 2 ? 2 : 5) : 2); ++i, ++turn) {
          auto words = others[turn % others.size()];
          if (12 % (dp * (words[0].back() - '0')) != 0) words[0] = "batch.micro=1";
          for (auto const& [axis, size] : {std::pair{"tp", tp}, {"cp", cp}, {"pp", pp}, {"dp", dp}})
            words.push_back(fmt::format("parallel.{}={}", axis, size));
          if (dp * cp == 1) std::erase_if(words, [](auto const& w) { return w.starts_with("memory.shard"); });
          if (tp > 1 && turn % 2 == 0) words.emplace_back("parallel.sequence=true");
          if (pp > 1) words.push_back("pipeline.schedule=" + schedules[(ranks > 2 ? turn : i) % schedules.size()]);
          if (pp > 1 && turn % 2 == 1) words.emplace_back("pipeline.vocab_parallel=true");
          if (cp > 1) words.push_back(std::string("context.order=") + (turn % 2 == 0 ? "zigzag" : "striped"));
          out.push_back(words);
        }
      }
  return out;
}

int run(test::Options const& o) {
  auto world = comm::Communicator::world();
  test::SharedFolder const folder(world);
  auto const path = folder / "documents";
  if (world.rank() == 0) write_documents(path);
  world.barrier().wait();
  test::Tally tally(world.size(), o);
  for (Words const& model : {Words{"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=48"},
                             Words{"model.preset=gpt2-tiny", "model.dropout=0.1", "model.tied_embeddings=true"}}) {
    auto const reference = test::train(make_config(path, model, {"batch.micro=1"}, 1), comm::Communicator::self(),
                                       steps, test::Also::evaluation);
    for (auto layout : layouts(world.size())) {
      if (o.sabotage) layout.emplace_back("run.seed=9");
      auto const got =
          test::train(make_config(path, model, layout, world.size()), world, steps, test::Also::evaluation);
      tally.compare(reference, got, fmt::format("{:<26} {}", model.front(), fmt::join(layout, " ")));
    }
  }
  return tally.finish();
}

}  // namespace

int main(int argc, char** argv) { return p3d::test::run_main(argc, argv, {"--sabotage"}, run); }
