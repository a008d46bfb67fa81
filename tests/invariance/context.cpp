// SPDX-License-Identifier: Apache-2.0
// Sequences divided over cp against one rank: every layout with cp > 1, every order and exchange, with sequences of odd
// length. Rank 0 trains the reference alone; losses of every step and gradients of the first one must agree.
//
//   mpiexec -n N invariance_context [--full] [--precision fp64|fp32] [--dropout RATE] [--only WORD] [--sabotage]
//
// Without --full every layout has one or two orders and exchanges, taken in turn. Exit code 1 when a loss is off by
// more than 1e-9 (fp32: 2e-4), or a gradient by more than 1e-12 (fp32: 2e-3) of the largest element of its tensor (or
// of a thousandth of the largest of all).

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using Words = std::vector<std::string>;

using p3d::test::Options;

/// A model, its data and its batch.
struct Case {
  std::string name;
  Words overrides;
};

struct Layout {
  std::string name;
  Words overrides;
};

constexpr int num_steps = 6;

// 4 key/value heads of 8 under tp = 2 leave 2 for an all-to-all. 37 tokens: no piece is like another.
std::vector<Case> cases() {
  Words const llama{"model.preset=llama-tiny", "model.vocab_size=257", "model.heads=8",
                    "model.kv_heads=4",        "model.hidden=64",      "model.ffn=96"};
  Words const gpt2{"model.preset=gpt2-tiny",    "model.vocab_size=257", "model.heads=8",
                   "model.kv_heads=8",          "model.hidden=64",      "model.ffn=96",
                   "model.tied_embeddings=true"};
  auto const with = [](Words words, Words const& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  return {{"llama", with(llama, {"model.seq_len=37", "batch.micro=2"})},
          {"gpt2", with(gpt2, {"model.seq_len=33", "batch.micro=1", "model.activation=xielu"})},
          {"window",
           with(llama, {"model.seq_len=40", "batch.micro=1", "model.window=[7, 0]", "model.norm_placement=post",
                        "model.rope_local_theta=100", "model.attention_multiplier=0.5", "model.rope_pairs=neighbours",
                        "model.attention_softcap=0.05", "model.logits_softcap=0.3", "model.attention_sinks=true"})},
          {"latent",
           with(llama, {"model.seq_len=39", "batch.micro=2", "model.kv_heads=8", "model.mla.kv_lora_rank=16",
                        "model.mla.qk_nope_head_dim=6", "model.mla.qk_rope_head_dim=4", "model.mla.v_head_dim=8",
                        "model.attention_sinks=true", "model.rope_scaling=longrope", "model.rope_original_seq_len=20",
                        "model.rope_short_factors=[1.0, 1.0]", "model.rope_long_factors=[1.2, 4.0]"})},
          // Latents that are wider than keys and values, which travel themselves then; and queries with a latent.
          {"wide-latent",
           with(llama, {"model.seq_len=38", "batch.micro=1", "model.kv_heads=8", "model.mla.kv_lora_rank=160",
                        "model.mla.q_lora_rank=10", "model.mla.qk_nope_head_dim=6", "model.mla.qk_rope_head_dim=4",
                        "model.mla.v_head_dim=8"})},
          // Latents with all that hides keys: documents, a window, a cap.
          {"packed-latent",
           with(llama, {"model.seq_len=43", "batch.micro=2", "model.kv_heads=8", "model.mla.kv_lora_rank=9",
                        "model.mla.q_lora_rank=7", "model.mla.qk_nope_head_dim=4", "model.mla.qk_rope_head_dim=6",
                        "model.mla.v_head_dim=5", "model.rope_pairs=neighbours", "data.pack=true", "data.eod_token=10",
                        "model.window=[11, 0]", "model.attention_softcap=0.1"})},
          {"packed", with(llama, {"model.seq_len=41", "batch.micro=2", "data.pack=true", "data.eod_token=10",
                                  "model.attention_softcap=0.1"})},
          {"packed-gpt2",
           with(gpt2, {"model.seq_len=48", "batch.micro=1", "data.pack=true", "data.eod_token=32", "model.window=9"})}};
}

/// Exchanges that cp allows.
Words exchanges(int cp, int kv_heads) {
  Words out{"ring", "gather", "auto"};
  if (kv_heads % cp == 0) out.emplace_back("all_to_all");
  for (int a = 2; a < cp; ++a)
    if (cp % a == 0 && kv_heads % a == 0) out.push_back(fmt::format("[{}, {}]", a, cp / a));
  return out;
}

/// Every dp x tp x pp x cp of the ranks with cp > 1.
std::vector<Layout> layouts(int ranks, int kv_heads, bool full, std::size_t turn) {
  std::vector<Layout> out;
  std::size_t taken = turn;
  for (int cp = 2; cp <= ranks; ++cp)
    for (int tp = 1; tp <= 2; ++tp)
      for (int pp = 1; pp <= 2; ++pp) {
        if (ranks % (cp * tp * pp) != 0) continue;
        int const dp = ranks / (cp * tp * pp);
        if (dp > 2) continue;
        Words const kinds = exchanges(cp, kv_heads / tp);
        Words const orders{"zigzag", "striped", "contiguous"};
        // Everything else that must go with cp, in turn.
        Words const others{"pipeline.lookahead=1",       "memory.recompute=full",
                           "memory.shard=parameters",    "memory.recompute=[\"attention\", \"norm\"]",
                           "parallel.order=cp-tp-pp-dp", "memory.shard=gradients"};
        Words const pipelines{"1f1b", "zb_h1", "interleaved_1f1b"};
        auto const add = [&](std::size_t kind, std::size_t order, std::size_t other) {
          Words words{fmt::format("parallel.cp={}", cp),
                      fmt::format("parallel.tp={}", tp),
                      fmt::format("parallel.pp={}", pp),
                      fmt::format("parallel.dp={}", dp),
                      "context.exchange=" + kinds[kind % kinds.size()],
                      "context.order=" + orders[order % orders.size()],
                      others[other % others.size()]};
          auto name = fmt::format("dp{} tp{} pp{} cp{} {} {} {}", dp, tp, pp, cp, kinds[kind % kinds.size()],
                                  orders[order % orders.size()], others[other % others.size()]);
          if (tp > 1 && other % 2 == 1) words.emplace_back("parallel.sequence=true");
          if (pp > 1) {
            words.push_back("pipeline.schedule=" + pipelines[other % pipelines.size()]);
            name += " " + pipelines[other % pipelines.size()];
          }
          out.push_back({name, words});
        };
        if (full) {
          for (std::size_t k = 0; k < kinds.size(); ++k)
            for (std::size_t o = 0; o < orders.size(); ++o) add(k, o, taken++);
        } else {
          for (std::size_t i = 0; i < (ranks > 4 ? 1 : 2); ++i, ++taken) add(taken, taken / 2 + i, taken);
        }
      }
  return out;
}

p3d::config::Config make_config(Options const& o, Case const& c, Layout const& l, int ranks, int seed) {
  Words const own{fmt::format("run.steps={}", num_steps),
                  fmt::format("run.seed={}", seed),
                  "run.precision=" + o.precision,
                  "model.dropout=" + o.dropout,
                  "optimizer.warmup_steps=3",
                  "optimizer.lr=1e-3",
                  "run.eval_batches=0",
                  "comm.bucket_mb=0.1",
                  "batch.global=4",
                  "model.layers=4",
                  p3d::test::licence_text()};
  return p3d::test::config_of(p3d::test::joined({c.overrides, own, l.overrides}), ranks);
}

int run(Options const& o) {
  auto world = p3d::comm::Communicator::world();
  p3d::test::Tally tally(world.size(), o);
  std::size_t turn = 0;
  for (auto const& c : cases()) {
    if (!o.only.empty() && c.name.find(o.only) == std::string::npos) continue;
    bool const all_heads = c.name.find("gpt2") != std::string::npos || c.name.find("latent") != std::string::npos;
    int const kv_heads = all_heads ? 8 : 4;
    // Every rank has the reference: no message to compare with.
    auto const reference =
        p3d::test::train(make_config(o, c, {"one rank", {}}, 1, 3), p3d::comm::Communicator::self(), num_steps);
    P3D_REQUIRE(reference.losses.front() > reference.losses.back() + 0.01, "the reference learns");
    for (auto const& layout : layouts(world.size(), kv_heads, o.full, turn++)) {
      auto const result =
          p3d::test::train(make_config(o, c, layout, world.size(), o.sabotage ? 4 : 3), world, num_steps);
      tally.compare(reference, result, fmt::format("{:<12} {:<60}", c.name, layout.name));
    }
  }
  return tally.finish();
}

}  // namespace

int main(int argc, char** argv) {
  return p3d::test::run_main(argc, argv, {"--full", "--precision", "--dropout", "--only", "--sabotage"}, run);
}
