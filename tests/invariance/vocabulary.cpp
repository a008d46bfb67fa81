// SPDX-License-Identifier: Apache-2.0
// pipeline.vocab_parallel: every schedule and kind of layout against one rank with the whole vocabulary. 61 tokens: no
// number of ranks divides them, and with 8 blocks of 8 the last one has three rows of padding.
//
//   mpiexec -n N invariance_vocabulary [--full] [--sabotage]
//
// Exit code 1 when a loss is off by more than 1e-9, or a gradient by more than 1e-12 (see deviations()).

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/schedule/registry.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

constexpr int steps = 3;

config::Config make_config(Words const& model, Words const& layout, int ranks) {
  Words const words{"data.format=synthetic",    "batch.micro=1",
                    "batch.global=24",          "model.vocab_size=61",
                    "model.layers=8",           "model.heads=4",
                    "model.hidden=32",          "model.seq_len=12",
                    "run.precision=fp64",       fmt::format("run.steps={}", steps),
                    "run.eval_batches=1",       "optimizer.lr=1e-3",
                    "optimizer.warmup_steps=2", "comm.bucket_mb=0.02"};
  auto config = p3d::test::config_of(p3d::test::joined({words, model, layout}), ranks);
  P3D_REQUIRE(ranks == 1 || config.divides_vocabulary(), "the vocabulary is divided");
  return config;
}

bool is_sharding(std::string const& word) {
  return word.starts_with("memory.shard") || word.starts_with("memory.reduce") || word.starts_with("memory.gather");
}

/// Layouts with pipelines, each with a schedule and with something that must go with it, in turn; `full`: each with all
/// schedules.
std::vector<Words> layouts(int ranks, bool full, std::size_t turn) {
  auto const directory = fmt::format("memory.offload_dir={}", std::filesystem::temp_directory_path().string());
  std::vector<Words> const others{{},
                                  {"memory.recompute=full"},
                                  {"memory.shard=optimizer"},
                                  {"memory.shard=gradients"},
                                  {"memory.shard=parameters", "memory.reduce=microbatch", "memory.gather=microbatch"},
                                  {"memory.shard=parameters", "memory.shard_layers=2"},
                                  {"memory.offload_activations=disk", directory},
                                  {"memory.offload_parameters=disk", directory, "memory.shard_layers=1"},
                                  {"pipeline.lookahead=0", "parallel.order=pp-tp-cp-dp"},
                                  {"pipeline.layers_per_stage=cost", "memory.recompute=[\"attention\", \"norm\"]"},
                                  {"batch.micro=2"},
                                  {"comm.overlap_tp=microbatch"}};
  Words schedules;
  for (auto const* generator : schedule::generators()) schedules.emplace_back(generator->name);
  std::vector<Words> out;
  for (int pp = 2; pp <= ranks && pp <= 4; ++pp)
    for (int tp : {1, 2, 4})
      for (int cp : {1, 2}) {
        if (ranks % (tp * cp * pp) != 0) continue;
        int const dp = ranks / (tp * cp * pp);
        std::size_t const each = full ? schedules.size() : ranks == 2 ? others.size() : 3;
        for (std::size_t i = 0; i < each; ++i, ++turn) {
          auto words = others[turn % others.size()];
          if (dp * cp == 1) std::erase_if(words, is_sharding);
          for (auto const& [axis, size] : {std::pair{"tp", tp}, {"cp", cp}, {"pp", pp}, {"dp", dp}})
            words.push_back(fmt::format("parallel.{}={}", axis, size));
          if (tp > 1 && turn % 2 == 0) words.emplace_back("parallel.sequence=true");
          words.emplace_back("pipeline.vocab_parallel=true");
          words.push_back("pipeline.schedule=" + schedules[turn % schedules.size()]);
          out.push_back(words);
        }
      }
  return out;
}

int run(test::Options const& o) {
  auto world = comm::Communicator::world();
  test::Tally tally(world.size(), o);
  std::size_t turn = 0;
  for (Words const& model :
       {Words{"model.preset=gpt2-tiny", "model.dropout=0.1"},
        Words{"model.preset=llama-tiny", "model.kv_heads=4", "model.ffn=48", "model.embedding_multiplier=3",
              "model.logits_scaling=1.5", "model.norm_placement=sandwich", "model.logits_softcap=0.2"},
        Words{"model.preset=gpt2-tiny", "model.tied_embeddings=false"}}) {
    auto const reference =
        test::train(make_config(model, {}, 1), comm::Communicator::self(), steps, test::Also::evaluation);
    for (auto layout : layouts(world.size(), o.full, turn += 5)) {
      if (o.sabotage) layout.emplace_back("run.seed=9");
      auto const config = make_config(model, layout, world.size());
      tally.compare(reference, test::train(config, world, steps, test::Also::evaluation),
                    fmt::format("{:<26} {}", model.front(), fmt::join(layout, " ")));
    }
  }
  return tally.finish();
}

}  // namespace

int main(int argc, char** argv) { return p3d::test::run_main(argc, argv, {"--full", "--sabotage"}, run); }
