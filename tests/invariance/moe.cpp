// SPDX-License-Identifier: Apache-2.0
// Mixture-of-experts models against one rank: experts dealt over ep and divided over etp, with tp, cp, pp and dp;
// several kinds of routers; losses of balance; a router that sends all tokens to few experts. Samples have an odd
// number of tokens, so that ranks hold unequal numbers of them, and some runs have so little room that groups of ranks
// go through different numbers of passes.
//
//   mpiexec -n N invariance_moe [--full] [--precision fp64|fp32] [--only WORD] [--sabotage]
//
// Exit code 1 when a loss is off by more than 1e-9, or a gradient by more than 1e-12 (see deviations()).

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

constexpr int steps = 5;

using test::Options;

struct Case {
  char const* name;
  Words words;
};

std::vector<Case> cases() {
  Words const common{"model.vocab_size=257", "model.layers=4",   "model.hidden=32", "model.heads=4",
                     "model.kv_heads=4",     "model.seq_len=25", "model.ffn=48"};
  auto const with = [&](Words words) {
    words.insert(words.begin(), common.begin(), common.end());
    return words;
  };
  return {
      {"mixtral", with({"model.preset=llama-tiny", "model.moe.experts=8", "model.moe.top_k=2"})},
      {"balanced", with({"model.preset=llama-tiny", "model.moe.experts=4", "model.moe.top_k=2",
                         "model.moe.aux_loss=sequence", "model.moe.aux_coefficient=0.1", "model.moe.z_coefficient=0.01",
                         "model.moe.ffn=24", "model.moe.jitter=0.05", "model.moe.bias=true",
                         "model.activation=swiglu_clamped", "model.swiglu_limit=0.2", "model.attention_sinks=true"})},
      {"deepseek",
       with({"model.preset=llama-tiny", "model.moe.experts=8", "model.moe.top_k=3", "model.moe.score=sigmoid",
             "model.moe.groups=4", "model.moe.group_top_k=2", "model.moe.scale=1.5", "model.moe.bias_update_rate=0.05",
             "model.moe.shared_ffn=16", "model.moe.shared_gate=true", "model.moe.ffn=16", "model.moe.first_dense=1",
             "model.mla.kv_lora_rank=12", "model.mla.q_lora_rank=10", "model.mla.qk_nope_head_dim=4",
             "model.mla.qk_rope_head_dim=4", "model.mla.v_head_dim=6"})},
      {"gpt2",
       with({"model.preset=gpt2-tiny", "model.dropout=0.1", "model.moe.experts=4", "model.moe.top_k=1",
             "model.moe.normalize=false", "model.moe.every=2", "model.moe.buffer_factor=1.0", "model.moe.bias=true"})},
      {"global", with({"model.preset=llama-tiny", "model.moe.experts=4", "model.moe.aux_loss=global",
                       "model.moe.aux_coefficient=0.1", "model.moe.ffn=16", "model.norm_placement=sandwich"})},
      {"capacity", with({"model.preset=llama-tiny", "model.moe.experts=4", "model.moe.capacity_factor=1.0",
                         "model.moe.ffn=16", "context.order=contiguous", "model.moe.bias=true"})},
      {"all", with({"model.preset=llama-tiny", "model.moe.experts=4", "model.moe.top_k=4", "model.moe.ffn=16",
                    "model.norm_placement=post"})}};
}

config::Config make_config(Options const& o, Words const& model, Words const& layout, int ranks) {
  Words const own{"run.precision=" + o.precision,
                  fmt::format("run.steps={}", steps),
                  "run.eval_batches=1",
                  "optimizer.lr=3e-3",
                  "optimizer.warmup_steps=2",
                  "comm.bucket_mb=0.02",
                  "batch.global=8",
                  p3d::test::licence_text()};
  return p3d::test::config_of(p3d::test::joined({model, own, layout}), ranks);
}

/// Every (tp, cp, pp, dp) x (etp, ep) of the ranks that a model of `experts` experts takes, each with something else in
/// turn.
std::vector<Words> layouts(int ranks, int experts, bool full, std::size_t turn) {
  std::vector<Words> out;
  std::vector<Words> const others{{"batch.micro=1"},
                                  {"batch.micro=2", "memory.recompute=full"},
                                  {"batch.micro=1", "memory.shard=parameters"},
                                  {"batch.micro=1", "memory.recompute=[\"attention\", \"norm\", \"activation\"]"},
                                  {"batch.micro=2", "memory.shard=gradients", "model.moe.buffer_factor=1.0"},
                                  {"batch.micro=1", "memory.shard=optimizer", "memory.recompute=full"},
                                  {"batch.micro=1", "model.moe.buffer_factor=0.3", "memory.recompute=full"},
                                  {"batch.micro=2", "model.moe.buffer_factor=0.05"}};
  std::vector<std::string> const schedules{"1f1b", "zb_h1", "interleaved_1f1b", "eager_1f1b"};
  for (int tp : {1, 2})
    for (int cp : {1, 2, 3})
      for (int pp : {1, 2}) {
        if (ranks % (tp * cp * pp) != 0) continue;
        int const dp = ranks / (tp * cp * pp), stage = tp * cp * dp;
        if (8 % dp != 0) continue;
        for (int etp : {1, 2})
          for (int ep : {1, 2, 3, 4, 8}) {
            if (stage % (etp * ep) != 0 || experts % ep != 0) continue;
            ++turn;
            if (!full && ranks > 2 && turn % (ranks > 6 ? 7 : 3) != 0) continue;
            auto words = others[turn % others.size()];
            if (8 % (dp * (words[0].back() - '0')) != 0) words[0] = "batch.micro=1";
            for (auto const& [axis, size] :
                 {std::pair{"tp", tp}, {"cp", cp}, {"pp", pp}, {"dp", dp}, {"etp", etp}, {"ep", ep}})
              words.push_back(fmt::format("parallel.{}={}", axis, size));
            if (dp * cp == 1) std::erase_if(words, [](auto const& w) { return w.starts_with("memory.shard"); });
            if (tp > 1) words.emplace_back("parallel.sequence=true");
            if (etp * ep > 1 && turn % 2 == 0) words.emplace_back("comm.overlap_experts=true");
            if (etp * ep > 1 && turn % 4 < 2) words.emplace_back("model.moe.dispatch=gather");
            if (pp > 1) words.push_back("pipeline.schedule=" + schedules[turn % schedules.size()]);
            auto const parsed =
                config::parse_text("", "layout", P3D_SOURCE_DIR,
                                   {fmt::format("model.moe.experts={}", experts), fmt::format("parallel.tp={}", tp),
                                    fmt::format("parallel.cp={}", cp), fmt::format("parallel.pp={}", pp),
                                    fmt::format("parallel.dp={}", dp), fmt::format("parallel.etp={}", etp),
                                    fmt::format("parallel.ep={}", ep), fmt::format("parallel.sequence={}", tp > 1),
                                    "data.format=synthetic"},
                                   ranks);
            if (parsed.config.has_value()) out.push_back(words);  // else the two factorisations do not fit
          }
      }
  return out;
}

int run(Options const& o) {
  auto world = comm::Communicator::world();
  test::Tally tally(world.size(), o);
  std::size_t turn = 0;
  for (auto const& c : cases()) {
    if (!o.only.empty() && std::string(c.name).find(o.only) == std::string::npos) continue;
    auto const plain = make_config(o, c.words, {"batch.micro=1"}, 1);
    auto const reference = test::train(plain, comm::Communicator::self(), steps, test::Also::evaluation);
    for (auto layout : layouts(world.size(), static_cast<int>(plain.model.moe.experts), o.full, turn++)) {
      if (o.sabotage) layout.emplace_back("run.seed=9");
      auto const got = test::train(make_config(o, c.words, layout, world.size()), world, steps, test::Also::evaluation);
      tally.compare(reference, got, fmt::format("{:<9} {}", c.name, fmt::join(layout, " ")));
    }
  }
  return tally.finish();
}

}  // namespace

int main(int argc, char** argv) {
  return p3d::test::run_main(argc, argv, {"--full", "--precision", "--only", "--sabotage"}, run);
}
