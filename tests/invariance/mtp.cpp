// SPDX-License-Identifier: Apache-2.0
// model.mtp: blocks of multi-token prediction in every kind of layout, schedule and memory policy, against one rank.
// Samples have an odd number of tokens, and documents that are packed, masked at their ends, or not told apart; a rank
// of cp has rows whose tokens ahead another rank has. With a loss weight of 0 all numbers of the model are, bit for
// bit, those of a model without blocks.
//
//   mpiexec -n N invariance_mtp [--full] [--sabotage]
//
// Exit code 1 when a loss is off by more than 1e-9, or a gradient by more than 1e-12 (see deviations()).

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/schedule/registry.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

constexpr int steps = 3;

config::Config make_config(Words const& model, Words const& layout, int ranks) {
  Words const words{"model.preset=llama-tiny", p3d::test::licence_text(),
                    "batch.micro=1",           "batch.global=24",
                    "model.vocab_size=256",    "model.layers=6",
                    "model.heads=4",           "model.kv_heads=4",
                    "model.hidden=32",         "model.ffn=48",
                    "model.seq_len=19",        "run.precision=fp64",
                    "run.eval_batches=1",      fmt::format("run.steps={}", steps),
                    "optimizer.lr=1e-3",       "optimizer.warmup_steps=2",
                    "comm.bucket_mb=0.02"};
  return p3d::test::config_of(p3d::test::joined({words, model, layout}), ranks);
}

struct Case {
  char const* name;
  Words words;
  bool experts = false;
};
std::vector<Case> cases() {
  Words const experts{"model.moe.experts=4",     "model.moe.top_k=2",       "model.moe.ffn=24",
                      "model.moe.score=sigmoid", "model.moe.shared_ffn=16", "model.moe.bias_update_rate=0.05"};
  Words const latent{"model.mla.kv_lora_rank=10", "model.mla.q_lora_rank=8", "model.mla.qk_nope_head_dim=4",
                     "model.mla.qk_rope_head_dim=4", "model.mla.v_head_dim=6"};
  return {{"untied", {"model.mtp.depth=1", "model.tied_embeddings=false"}},
          {"packed",
           {"model.mtp.depth=3", "model.mtp.loss_weight=0.7", "data.pack=true", "data.eod_token=32",
            "model.tied_embeddings=true", "model.logits_softcap=4"}},
          {"deepseek",
           test::joined({experts,
                         latent,
                         {"model.mtp.depth=2", "model.mtp.loss_weight=0.5", "data.eod_token=10",
                          "data.eod_mask_loss=true", "data.reset_positions=true", "model.tied_embeddings=false",
                          "model.moe.first_dense=1", "model.moe.aux_loss=sequence", "model.moe.aux_coefficient=0.1",
                          "model.moe.z_coefficient=0.01", "parallel.embedding=replicated"}}),
           true},
          {"sandwich",
           {"model.mtp.depth=1", "model.tied_embeddings=false", "model.norm=layernorm", "model.bias=true",
            "model.norm_placement=sandwich", "model.window=[5, 0]", "model.rope_layers=[1, 0, 1]",
            "parallel.embedding=replicated"}}};
}

/// Divisions of the ranks, each with something else that must go with it in turn; with `full` each with all of it.
std::vector<Words> layouts(int ranks, bool experts, bool full, std::size_t turn) {
  std::vector<Words> const others{{},
                                  {"memory.recompute=full", "batch.micro=2"},
                                  {"memory.shard=optimizer", "memory.recompute=[\"attention\", \"norm\"]"},
                                  {"memory.shard=parameters", "memory.shard_layers=2"},
                                  {"memory.offload_activations=disk"},
                                  {"optimizer.post_validation=true", "pipeline.lookahead=0"},
                                  {"memory.shard=gradients", "memory.reduce=microbatch"},
                                  {"memory.offload_parameters=disk", "memory.offload_optimizer=disk"},
                                  {"pipeline.layers_per_stage=cost", "parallel.order=pp-tp-cp-dp"}};
  Words schedules;
  for (auto const* generator : schedule::generators()) schedules.emplace_back(generator->name);
  std::vector<Words> out;
  auto const without = [](Words& words, std::string_view beginning) {
    std::erase_if(words, [&](auto const& w) { return w.starts_with(beginning); });
  };
  for (int tp : {1, 2, 4})
    for (int cp : {1, 2, 3, 4})
      for (int pp : {1, 2, 3}) {
        if (ranks % (tp * cp * pp) != 0) continue;
        int const dp = ranks / (tp * cp * pp);
        std::size_t const each = full ? others.size() * (pp > 1 ? 2 : 1) : ranks == 1 ? 9 : ranks == 2 ? 2 : 1;
        for (std::size_t i = 0; i < each; ++i, ++turn) {
          auto words = others[turn % others.size()];
          if (dp * cp == 1) without(words, "memory.shard"), without(words, "memory.reduce=");
          if (pp > 1 || dp == 8) without(words, "batch.micro");
          if (pp == 1) without(words, "pipeline.");
          if (experts) without(words, "memory.offload"), without(words, "optimizer.post");
          bool const offloads = !words.empty() && words.front().starts_with("memory.offload_activations");
          for (auto const& [axis, size] : {std::pair{"tp", tp}, {"cp", cp}, {"pp", pp}, {"dp", dp}})
            words.push_back(fmt::format("parallel.{}={}", axis, size));
          if (tp > 1 && (experts || turn % 3 != 0)) words.emplace_back("parallel.sequence=true");
          if (experts && dp > 1) words.push_back(fmt::format("parallel.ep={}", dp == 4 ? 4 : 2 - dp % 2));
          if (experts && tp > 1 && turn % 2 == 0) words.push_back(fmt::format("parallel.etp={}", tp));
          if (cp > 1) words.push_back(std::string("context.order=") + (turn % 2 == 0 ? "zigzag" : "striped"));
          if (pp > 1) words.push_back("pipeline.schedule=" + (offloads ? "zb_h1" : schedules[turn % schedules.size()]));
          out.push_back(words);
        }
      }
  return out;
}

/// True when a run has the numbers of another one, and maybe more parameters.
bool same_bits(test::RunResult const& without, test::RunResult const& with) {
  bool same = without.norms == with.norms;
  for (std::size_t i = 0; i < without.losses.size(); ++i) same = same && without.losses[i] == with.losses.at(2 * i);
  for (auto const of : {&test::RunResult::gradients, &test::RunResult::values})
    for (auto const& [name, numbers] : without.*of) same = same && numbers == (with.*of).at(name);
  return same;
}

/// Counts layouts in which blocks with a loss weight of 0 change a number of the model.
int run_without_weight(comm::Communicator& world) {
  int failures = 0;
  for (Words const& layout : {Words{fmt::format("parallel.pp={}", world.size() % 2 == 0 ? 2 : 1)},
                              Words{fmt::format("parallel.tp={}", world.size() % 2 == 0 ? 2 : 1)}}) {
    auto const result = [&](char const* depth) {
      return test::train(
          make_config({"model.tied_embeddings=true", "model.mtp.loss_weight=0.0", depth}, layout, world.size()), world,
          steps, test::Also::values);
    };
    auto const plain = test::train(make_config({"model.tied_embeddings=true"}, layout, world.size()), world, steps,
                                   test::Also::values);
    bool const good = same_bits(plain, result("model.mtp.depth=2"));
    failures += good ? 0 : 1;
    base::log_root(
        fmt::format("{} loss weight 0 has the bits of no blocks: {}", good ? "ok  " : "FAIL", fmt::join(layout, " ")));
  }
  return failures;
}

int run(test::Options const& o) {
  auto world = comm::Communicator::world();
  test::Tally tally(world.size(), o);
  std::size_t turn = 0;
  for (auto const& each : cases()) {
    auto const reference =
        test::train(make_config(each.words, {}, 1), comm::Communicator::self(), steps, test::Also::evaluation);
    for (auto layout : layouts(world.size(), each.experts, o.full, turn += 2)) {
      if (o.sabotage) layout.emplace_back("run.seed=9");
      auto const config = make_config(each.words, layout, world.size());
      tally.compare(reference, test::train(config, world, steps, test::Also::evaluation),
                    fmt::format("{:<9} {}", each.name, fmt::join(layout, " ")));
    }
  }
  int const failures = o.sabotage ? 0 : run_without_weight(world);
  return tally.finish() + failures;
}

}  // namespace

int main(int argc, char** argv) { return p3d::test::run_main(argc, argv, {"--full", "--sabotage"}, run); }
