// SPDX-License-Identifier: Apache-2.0
// Windows and context parallelism in operations, costs and traffic, against counts made one by one.

#include <p3d/config/config.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/recompute.hpp>
#include <p3d/plan/traffic.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {
using namespace p3d;

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
  auto const recompute = layout::stage_recompute(c.memory, stages, 1);
  EXPECT_DOUBLE_EQ(plan::recompute_cost_per_token(c, recompute, 2, plan::Keys::all), extra(1, plan::Keys::all));
}

// A walk over the layers of a stage: matrices by their weights, attention pair by pair.
TEST(Windows, CostsOfStagesAreThoseOfTheirLayers) {
  for (int const cp : {1, 3}) {
    auto c = model({4, 4, 0});
    c.batch.micro = 2;
    c.parallel.tp = 2;
    c.parallel.cp = cp;
    layout::StageMap const stages({2, 5}, 2);
    auto const costs = plan::model_costs(c, stages, {.flops = 1, .bandwidth = 1, .latency = 0});
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
/// gives every other member its share of the heads. Gradients of a block travel like the block, in `sum` bytes.
plan::ContextTraffic by_messages(layout::ContextDivision const& d, double q, double kv, double bytes, double sum) {
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
      backward += bytes * (own * heads * q + gradients);
    }
    for (int step = 1; step < d.ring(); ++step) {
      auto const block = static_cast<double>(d.place_tokens((d.place(rank) + step) % d.ring()).size()) / d.all_to_all;
      forward += bytes * block * 2 * kv;
      backward += (bytes + sum) * block * 2 * kv;
    }
  }
  return {forward / d.cp, backward / d.cp};
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
        auto const expected = by_messages(layout::context_division(c), 48, 16, bytes, std::max(bytes, 4.0));
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
  EXPECT_DOUBLE_EQ(t.backward, t.forward);
  c.parallel.cp = 1;
  EXPECT_EQ(plan::context_traffic(c).forward + plan::context_traffic(c).backward, 0);
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
}

}  // namespace
