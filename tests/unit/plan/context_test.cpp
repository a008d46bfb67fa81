// SPDX-License-Identifier: Apache-2.0
// Windows and context parallelism in operations, costs and traffic, against counts made one by one.

#include <p3d/config/config.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/traffic.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace {
using namespace p3d;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// 13 tokens, a model of 7 layers, heads of width 8: queries 48, keys 16.
config::Config model(std::vector<std::int64_t> window = {}) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 101, m.hidden = 48, m.layers = 7, m.heads = 6, m.kv_heads = 2, m.ffn = 80, m.seq_len = 13;
  m.activation = config::Activation::swiglu;
  m.window = std::move(window);
  return c;
}

/// Pairs of a query and a key that it sees, of a sequence.
double pairs(config::Config const& c, std::int64_t layer) {
  std::int64_t const window =
      c.model.window.empty() ? 0 : c.model.window[static_cast<std::size_t>(layer) % c.model.window.size()];
  double count = 0;
  for (std::int64_t query = 0; query < c.model.seq_len; ++query)
    for (std::int64_t key = 0; key <= query; ++key) count += window == 0 || query - key < window ? 1 : 0;
  return count;
}

TEST(Windows, KeysOfAQueryAreThoseOfTheMask) {
  for (std::int64_t const window : {0, 1, 2, 5, 12, 13, 14, 1000}) {
    auto const c = model({window});
    EXPECT_NEAR(13 * plan::keys_per_query(c, 3, plan::Keys::seen), pairs(c, 3), 1e-12) << window;
    double const most = window == 0 || window > 13 ? 13 : static_cast<double>(window);  // the last query's
    EXPECT_EQ(plan::keys_per_query(c, 3, plan::Keys::all), most) << window;
  }
  auto const mixed = model({4, 0});
  EXPECT_EQ(plan::keys_per_query(mixed, 6, plan::Keys::all), 4);
  EXPECT_EQ(plan::keys_per_query(mixed, 5, plan::Keys::all), 13);
}

// MFU counts every layer by its window: forward and backward are 12 operations for each dimension and key.
TEST(Windows, FlopsOfAttentionAreSummedByLayer) {
  auto const without = plan::flops_per_token(model());
  EXPECT_DOUBLE_EQ(plan::flops_per_token(model({13})), without) << "a window of the whole sequence";
  // Layers 0, 1, 3, 4 and 6 see 4 keys in place of 13.
  EXPECT_DOUBLE_EQ(plan::flops_per_token(model({4, 4, 0})), without - 12.0 * 48 * 5 * (13 - 4));
  auto c = model({4, 4, 0});
  c.batch.global = 6;
  EXPECT_DOUBLE_EQ(plan::model_flops_per_step(c), 6 * 13 * plan::flops_per_token(c));
  auto on_cp = c;
  on_cp.parallel.cp = 2;
  EXPECT_EQ(plan::model_flops_per_step(on_cp), plan::model_flops_per_step(c)) << "of all ranks";
}

TEST(Windows, RecomputationCountsTheLayersOfItsStage) {
  auto c = model({4, 4, 0});
  c.memory.recompute = config::Recompute::list;
  c.memory.recompute_ops.attention = true;
  layout::StageMap const stages({2, 5}, 2);
  auto const extra = [&](int stage, plan::Keys keys) {
    return plan::recompute_flops_per_token(c, layout::stage_recompute(c.memory, stages, stage),
                                           stages.layers(stage).begin, keys);
  };
  EXPECT_DOUBLE_EQ(extra(0, plan::Keys::all), 4.0 * 48 * (4 + 4));
  EXPECT_DOUBLE_EQ(extra(1, plan::Keys::all), 4.0 * 48 * (13 + 4 + 4 + 13 + 4));
  EXPECT_DOUBLE_EQ(13 * extra(1, plan::Keys::seen), 4.0 * 48 * (2 * pairs(c, 2) + 3 * pairs(c, 0)));
}

// A walk over the layers of a stage: matrices by their weights, attention pair by pair.
TEST(Windows, CostsOfStagesAreThoseOfTheirLayers) {
  for (int const cp : {1, 3}) {
    auto c = model({4, 4, 0});
    c.batch.micro = 2;
    c.parallel.tp = 2;
    c.parallel.cp = cp;
    layout::StageMap const stages({2, 5}, 2);
    auto const costs = plan::model_costs(c, stages, {.flops = 1, .bandwidth = infinity, .latency = 0});
    double const share = 2.0 / (2 * cp);  // sequences, over the ranks of tp and cp
    for (int s = 0; s < 2; ++s) {
      double products = s == 1 ? 2.0 * 13 * 48 * 101 : 0.0, attention = 0;
      for (int l = s == 0 ? 0 : 2; l < (s == 0 ? 2 : 7); ++l) {
        products += 2.0 * 13 * 48 * (48 + 48 + 16 + 16 + 3 * 80);
        attention += 2 * 2.0 * 48 * pairs(c, l);
      }
      auto const& cost = costs.stages[static_cast<std::size_t>(s)];
      EXPECT_NEAR(cost.forward / (share * (products + attention)), 1, 1e-12);
      EXPECT_NEAR(cost.input / (share * (products + 2 * attention)), 1, 1e-12);
      EXPECT_NEAR(cost.weight / (share * products), 1, 1e-12);
    }
    // 13 tokens in 6 pieces of 2 or 3: two ranks have 4 tokens, one has 5.
    double const tokens = cp == 1 ? 26 : 10;
    EXPECT_EQ(costs.message_bytes, tokens * 48 * 4);
    c.parallel.sequence = true;
    EXPECT_EQ(plan::model_costs(c, stages).message_bytes, tokens / 2 * 48 * 4);
  }
}

/// Pipeline of 2 ranks with 3 layers each, 4 microbatches.
struct Planned {
  config::Config c;
  plan::PipelinePlan plan;
  std::vector<layout::StageActivations> activations;

  explicit Planned(config::Config config) : c(std::move(config)), plan(make(c)) {
    for (int s = 0; s < 2; ++s)
      activations.push_back({.slots = 4, .recompute = layout::stage_recompute(c.memory, plan.stages, s)});
  }
  static plan::PipelinePlan make(config::Config& c) {
    c.model.layers = 6;
    c.parallel.pp = 2;
    c.batch.microbatches = c.batch.global = 4;
    c.pipeline.schedule = "gpipe";
    return plan::plan_pipeline(c);
  }
  double per_step(int pipeline_rank) const {
    return plan::context_traffic_per_step(c, plan.stages, activations, plan.program, pipeline_rank);
  }
};

// The ranks of cp share the tokens of a sequence: what tp sends of them all is what it sends without cp.
TEST(ContextTraffic, TensorTrafficIsDividedOverCp) {
  for (bool const sequence : {false, true}) {
    auto c = model();
    c.parallel.tp = 2;
    c.parallel.sequence = sequence;
    Planned const whole(c);
    c.parallel.cp = 3;
    Planned const divided(c);
    for (int r = 0; r < 2; ++r) {
      auto const of = [&](Planned const& x, int context_rank) {
        return plan::tensor_traffic(x.c, x.plan.stages, x.activations, x.plan.program, r, context_rank);
      };
      plan::TensorTraffic sum;
      for (int k = 0; k < 3; ++k) {
        auto const t = of(divided, k);
        EXPECT_GT(t.total(), 0);
        sum.all_reduce += t.all_reduce;
        sum.reduce_scatter += t.reduce_scatter;
        sum.all_gather += t.all_gather;
      }
      auto const all = of(whole, 0);
      EXPECT_DOUBLE_EQ(sum.all_reduce, all.all_reduce);
      EXPECT_DOUBLE_EQ(sum.reduce_scatter, all.reduce_scatter);
      EXPECT_DOUBLE_EQ(sum.all_gather, all.all_gather);
    }
  }
}

/// What all ranks send, message by message: a ring hands blocks of keys and values on ring - 1 times, an all-to-all
/// gives every other member its share of the heads. Gradients of a block travel like the block, in `sum` bytes, as a
/// number for each query and head does.
plan::ContextTraffic by_messages(layout::ContextDivision const& d, double q, double kv, double num_heads, double bytes,
                                 double sum) {
  double forward = 0, backward = 0;
  for (int rank = 0; rank < d.cp; ++rank) {
    auto const own = static_cast<double>(d.tokens(rank).size());
    for (int other = 0; other < d.cp; ++other) {
      if (d.place(other) != d.place(rank) || other == rank) continue;
      double const heads = 1.0 / d.all_to_all;
      double const there = own * heads * (q + 2 * kv);                              // queries, keys, values
      double const back = static_cast<double>(d.tokens(other).size()) * heads * q;  // outputs
      double const gradients = static_cast<double>(d.tokens(other).size()) * heads * (q + 2 * kv);
      forward += bytes * (there + back);
      backward += bytes * (own * heads * q + gradients) + sum * own * num_heads * heads;
    }
    for (int step = 1; step < d.ring(); ++step) {
      auto const block = static_cast<double>(d.place_tokens((d.place(rank) + step) % d.ring()).size()) / d.all_to_all;
      forward += bytes * block * 2 * kv;
      backward += (bytes + sum) * block * 2 * kv;
    }
  }
  return {.forward = forward / d.cp, .backward = backward / d.cp};
}

TEST(ContextTraffic, IsTheMeanOfAllMessages) {
  struct Case {
    int cp;
    config::ContextExchange exchange;
    int all_to_all;
  };
  using enum config::ContextExchange;
  for (auto const& x :
       std::vector<Case>{{3, ring, 1}, {5, gather, 1}, {2, all_to_all, 1}, {6, nested, 2}, {4, ring, 1}})
    for (auto order : {config::ContextOrder::zigzag, config::ContextOrder::striped, config::ContextOrder::contiguous})
      for (auto type : {config::Precision::fp64, config::Precision::fp32, config::Precision::bf16}) {
        auto c = model();
        c.run.precision = type;
        c.batch.micro = 3;
        c.parallel.cp = x.cp;
        c.context = {.order = order, .exchange = x.exchange, .all_to_all = x.all_to_all, .ring = x.cp / x.all_to_all};
        double const bytes = type == config::Precision::fp64 ? 8 : type == config::Precision::fp32 ? 4 : 2;
        auto const expected = by_messages(layout::context_division(c), 48, 16, 6, bytes, std::max(bytes, 4.0));
        auto const found = plan::context_traffic(c);
        EXPECT_NEAR(found.forward / (3 * expected.forward), 1, 1e-12) << x.cp << to_string(order);
        EXPECT_NEAR(found.backward / (3 * expected.backward), 1, 1e-12) << x.cp << to_string(order);
      }
}

// Llama 3 8B, 4096 tokens, cp 4, bf16: keys and values of 3/4 of the tokens come, and their gradients go in fp32.
TEST(ContextTraffic, OfLlama) {
  config::Config c;
  c.model.hidden = 4096, c.model.heads = 32, c.model.kv_heads = 8, c.model.seq_len = 4096;
  c.run.precision = config::Precision::bf16;
  c.parallel.cp = 4;
  c.context.exchange = config::ContextExchange::ring;
  auto t = plan::context_traffic(c);
  EXPECT_DOUBLE_EQ(t.forward, 2 * 0.75 * 4096 * 1024 * 2);  // 12.6 MB
  EXPECT_DOUBLE_EQ(t.backward, 2 * 0.75 * 4096 * 1024 * (2 + 4));
  c.parallel.tp = 2;
  EXPECT_DOUBLE_EQ(plan::context_traffic(c).forward, t.forward / 2);
  c.context.exchange = config::ContextExchange::all_to_all;
  t = plan::context_traffic(c);
  EXPECT_DOUBLE_EQ(t.forward, 0.75 * 1024 * (2 * 2048 + 2 * 512) * 2);
  EXPECT_DOUBLE_EQ(t.backward, t.forward + 0.75 * 1024 * 16 * 4);  // a number for each of 16 heads, fp32
  c.parallel.cp = 1;
  EXPECT_EQ(plan::context_traffic(c).forward + plan::context_traffic(c).backward, 0);
}

// DeepSeek-V3 over a ring of 8, bf16: latents of 576 in place of keys and values of 40,960 / tp.
TEST(ContextTraffic, OfDeepSeek) {
  config::Config c;
  c.model.hidden = 7168, c.model.heads = c.model.kv_heads = 128, c.model.head_size = 192, c.model.seq_len = 131072;
  c.model.mla = {.kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
  c.run.precision = config::Precision::bf16;
  c.parallel.cp = 8;
  for (auto const exchange : {config::ContextExchange::ring, config::ContextExchange::gather})
    for (int const tp : {1, 8}) {
      c.context.exchange = exchange;
      c.parallel.tp = tp;
      auto const t = plan::context_traffic(c);
      EXPECT_DOUBLE_EQ(t.forward, 7.0 / 8 * 131072 * 576 * 2);  // 126 MiB
      EXPECT_DOUBLE_EQ(t.backward, 7.0 / 8 * 131072 * 576 * (2 + 4));
      auto whole = c;
      whole.model.mla.kv_lora_rank = 1 << 20;
      EXPECT_DOUBLE_EQ(plan::context_traffic(whole).forward, 7.0 / 8 * 131072 * 40960 / tp * 2);
    }
  // Tokens for heads: latents go to each of 7 members, 16 Ki tokens, and queries and outputs as ever.
  c.context.exchange = config::ContextExchange::all_to_all;
  c.parallel.tp = 1;
  auto const t = plan::context_traffic(c);
  double const tokens = 16384, around = 7.0 / 8 * tokens * 128 * (192 + 128), members = 7 * tokens * 576;
  EXPECT_DOUBLE_EQ(t.forward, 2 * (around + members));
  EXPECT_DOUBLE_EQ(t.backward, 2 * (around + 2 * members) + 4 * 7.0 / 8 * tokens * 128);
  c.parallel.tp = 8;
  EXPECT_DOUBLE_EQ(plan::context_traffic(c).forward, 2 * 7.0 / 8 * tokens * 16 * (192 + 192 + 128 + 128))
      << "keys and values are fewer bytes";
}

// 4 microbatches, 3 layers of a rank; remade attention asks for keys and values once more.
TEST(ContextTraffic, OfAStep) {
  auto c = model();
  c.parallel.cp = 3;
  auto const each = plan::context_traffic(c);
  EXPECT_DOUBLE_EQ(Planned(c).per_step(1), 4 * 3 * (each.forward + each.backward));
  c.memory.recompute = config::Recompute::full;
  EXPECT_DOUBLE_EQ(Planned(c).per_step(0), 4 * 3 * (2 * each.forward + each.backward));
  c.memory.recompute_layers = 1;
  EXPECT_DOUBLE_EQ(Planned(c).per_step(0), 4 * ((3 + 1) * each.forward + 3 * each.backward));
  c.memory.recompute_microbatches_kept = 3;
  EXPECT_DOUBLE_EQ(Planned(c).per_step(0), 4 * 3 * (each.forward + each.backward) + each.forward);
  c.memory = {};
  c.memory.recompute = config::Recompute::list;
  c.memory.recompute_ops = {.norm = true, .activation = true};
  EXPECT_DOUBLE_EQ(Planned(c).per_step(0), 4 * 3 * (each.forward + each.backward)) << "no attention among them";
  c.memory.recompute_ops.attention = true;
  EXPECT_DOUBLE_EQ(Planned(c).per_step(0), 4 * 3 * (2 * each.forward + each.backward));
  // Behind an all-to-all queries, keys and values are kept: outputs alone travel once more.
  c.parallel.cp = 2;
  c.context.exchange = config::ContextExchange::all_to_all;
  auto const halves = plan::context_traffic(c);
  EXPECT_DOUBLE_EQ(halves.again, 0.5 * 6.5 * 48 * 4);
  EXPECT_DOUBLE_EQ(Planned(c).per_step(0), 4 * 3 * (halves.forward + halves.backward + halves.again));
}

/// 1024 tokens over cp, fp32: keys and values of a rank's block have 1024 / cp x 32 x 4 bytes.
config::Config divided(int cp, config::ContextExchange exchange, int all_to_all = 1) {
  auto c = model();
  c.model.seq_len = 1024;
  c.parallel.cp = cp;
  c.context = {.exchange = exchange, .all_to_all = all_to_all, .ring = cp / all_to_all};
  return c;
}

layout::ContextWait wait_of(config::Config const& c, layout::MachineRates const& rates) {
  return layout::context_wait(layout::context_division(c), layout::context_work(c, 0, rates), rates);
}

// Slow ranks hide every hop that has work beside it; ranks that compute at once hide none, and wait for what is sent.
TEST(ContextWait, OfARingIsWhatWorkDoesNotHide) {
  double const latency = 3e-4, bandwidth = 1e8, hop = latency + 256 * 32 * 4 / bandwidth;
  auto c = divided(4, config::ContextExchange::ring);
  auto const hidden = wait_of(c, {.flops = 1, .bandwidth = bandwidth, .latency = latency});
  EXPECT_EQ(hidden.forward, 0);
  EXPECT_EQ(hidden.again, 0);
  EXPECT_DOUBLE_EQ(hidden.backward, 2 * hop) << "the first keys and the last gradients";
  auto const open = wait_of(c, {.flops = infinity, .bandwidth = bandwidth, .latency = latency});
  auto const sent = plan::context_traffic(c);
  EXPECT_DOUBLE_EQ(open.forward, 3 * latency + sent.forward / bandwidth);
  EXPECT_DOUBLE_EQ(open.again, open.forward);
  EXPECT_DOUBLE_EQ(open.backward, 6 * latency + sent.backward / bandwidth);
  // Half of a hop is hidden by a block forward; one hop of two by a block backward.
  double const operations = 4.0 * 48 * 256 * 1025 / 2;
  auto const half = wait_of(c, {.flops = operations / 4 / (hop / 2), .bandwidth = bandwidth, .latency = latency});
  EXPECT_NEAR(half.forward / (3 * hop / 2), 1, 1e-12);
  EXPECT_NEAR(half.backward / (2 * hop + hop), 1, 1e-12);
  c = divided(2, config::ContextExchange::ring);
  EXPECT_DOUBLE_EQ(wait_of(c, {.flops = 1e12, .bandwidth = bandwidth, .latency = latency}).backward,
                   2 * latency + plan::context_traffic(c).backward / bandwidth);
}

// 3 exchanges with each other member backward: gradients of outputs, numbers of heads, gradients of inputs.
TEST(ContextWait, OfAGatherAndAnAllToAllIsAllOfIt) {
  using enum config::ContextExchange;
  layout::MachineRates const rates{.flops = 1, .bandwidth = 1e8, .latency = 3e-4};
  auto const check = [&](config::Config const& c, double forward, double backward, double again) {
    auto const wait = wait_of(c, rates);
    auto const sent = plan::context_traffic(c);
    EXPECT_DOUBLE_EQ(wait.forward, forward * rates.latency + sent.forward / rates.bandwidth);
    EXPECT_DOUBLE_EQ(wait.backward, backward * rates.latency + sent.backward / rates.bandwidth);
    EXPECT_DOUBLE_EQ(wait.again, again * rates.latency + sent.again / rates.bandwidth);
  };
  check(divided(4, gather), 3, 6, 3);
  check(divided(2, all_to_all), 2, 3, 1);
  check(divided(1, ring), 0, 0, 0);
  auto c = divided(4, nested, 2);
  c.run.precision = config::Precision::bf16;
  auto at_once = rates;
  at_once.flops = infinity;
  auto const sent = plan::context_traffic(c);
  EXPECT_DOUBLE_EQ(wait_of(c, at_once).forward, 3 * rates.latency + sent.forward / rates.bandwidth);
  EXPECT_DOUBLE_EQ(wait_of(c, at_once).backward, 5 * rates.latency + sent.backward / rates.bandwidth);
}

TEST(ContextWait, IsAPartOfTheActionsOfAStage) {
  auto c = divided(2, config::ContextExchange::all_to_all);
  c.memory.recompute = config::Recompute::list;
  c.memory.recompute_ops.attention = true;
  layout::StageMap const stages({2, 5}, 2);
  layout::MachineRates const rates, free{.bandwidth = infinity, .latency = 0};
  auto const wait = wait_of(c, rates);
  for (int s = 0; s < 2; ++s) {
    auto const with = plan::model_costs(c, stages, rates).stages[static_cast<std::size_t>(s)];
    auto const without = plan::model_costs(c, stages, free).stages[static_cast<std::size_t>(s)];
    double const layers = s == 0 ? 2 : 5;
    EXPECT_NEAR((with.forward - without.forward) / (layers * wait.forward), 1, 1e-9);
    EXPECT_NEAR((with.input - without.input) / (layers * wait.backward), 1, 1e-9);
    EXPECT_NEAR((with.recompute - without.recompute) / (layers * wait.again), 1, 1e-9);
    EXPECT_EQ(with.weight, without.weight);
  }
}

// The weight gradient behind latents comes with the input part, of own tokens and of those of three other places; keys
// and values of these are made twice, and the gradients of their latents once.
TEST(ContextWait, OfLatentsHasTheirExpansion) {
  auto c = divided(4, config::ContextExchange::gather);
  c.model.kv_heads = 6;
  c.model.mla = {.kv_lora_rank = 10, .qk_nope_head_dim = 6, .qk_rope_head_dim = 2, .v_head_dim = 8};
  layout::StageMap const stages({2, 5}, 2);
  layout::MachineRates const free{.flops = 1e9, .bandwidth = infinity, .latency = 0};
  double const own = 2.0 * 256 * 10 * 6 * (6 + 8) / 1e9;
  auto const wait = wait_of(c, free);
  EXPECT_NEAR(wait.forward / (3 * own), 1, 1e-9);
  EXPECT_NEAR(wait.backward / (9 * own), 1, 1e-9);
  auto apart = c;
  apart.model.mla.kv_lora_rank = 1000;
  ASSERT_FALSE(layout::context_division(apart).latents);
  EXPECT_EQ(wait_of(apart, free).forward, 0);
  auto alone = c;
  alone.parallel.cp = 1;
  alone.model.seq_len = 256;  // as many tokens a rank: only attention's work differs
  auto const with = plan::model_costs(c, stages, free).stages[0],
             without = plan::model_costs(alone, stages, free).stages[0];
  EXPECT_NEAR((without.weight - with.weight) / (2 * own), 1, 1e-9);
  double const attention = with.forward - without.forward - 2 * 3 * own;  // of two layers, forward
  EXPECT_NEAR((with.input - without.input - 2 * attention) / (2 * 10 * own), 1, 1e-6);
}

// Long sequences hide a ring. With short windows all hops are open, and an all-to-all sends less.
TEST(ContextWait, AutoTakesTheLeast) {
  auto c = divided(4, config::ContextExchange::automatic);
  c.model.heads = c.model.kv_heads = 8, c.model.hidden = 512;
  auto const check = [&](config::Config const& input) {
    auto const found = layout::context_division(input);
    double least = infinity;
    int best = 0;
    for (int const a : {1, 2, 4}) {
      auto named = input;
      named.context = {.exchange = config::ContextExchange::nested, .all_to_all = a, .ring = 4 / a};
      double sum = 0;
      for (std::int64_t l = 0; l < input.model.layers; ++l) {
        layout::MachineRates const rates;
        auto const wait =
            layout::context_wait(layout::context_division(named), layout::context_work(named, l, rates), rates);
        sum += wait.forward + wait.backward;
      }
      if (sum < least) best = a;
      least = std::min(least, sum);
    }
    EXPECT_EQ(found.all_to_all, best);
    return found.all_to_all;
  };
  c.model.seq_len = 65536;
  EXPECT_EQ(check(c), 1) << "work hides all hops but two";
  for (std::int64_t const length : {16, 64, 512, 2048}) {
    c.model.seq_len = length;
    check(c);
  }
  c.model.seq_len = 65536;
  c.model.window = {16, 16, 0};
  check(c);
  c.model.window = {16};
  c.model.kv_heads = 4;
  EXPECT_EQ(check(c), 4) << "nothing hides the hops";
}

}  // namespace
