// SPDX-License-Identifier: Apache-2.0
// The search for layouts, against trying every layout.
#include "planned_inputs.hpp"

#include <p3d/plan/run_plan.hpp>
#include <p3d/plan/search.hpp>
#include <p3d/plan/step_time.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <tuple>

namespace {
using namespace p3d;
using test::cluster;
using test::input;
using test::parsed;

struct Tried {
  double seconds = 0, bytes = 0;
  double few_bytes = 0;  ///< with few microbatches, which the search plans first
  std::string layout;
  bool operator<(Tried const& b) const {
    return std::tie(seconds, bytes, layout) < std::tie(b.seconds, b.bytes, b.layout);
  }
};

/// Everything that the search may choose for the input of these words, tried one by one with the same checks.
std::vector<Tried> by_trying(std::vector<std::string> const& of_base, config::Cluster const& machine, int ranks,
                             std::string const& kernels = "") {
  auto const generation = plan::kernels_of(kernels, "");
  std::vector<Tried> all;
  auto const base = input(of_base);
  auto const experts = base.model.moe.on() ? static_cast<int>(base.model.moe.experts) : 1;
  auto const try_one = [&](std::vector<std::string> words) {
    words.insert(words.begin(), of_base.begin(), of_base.end());
    auto const found = parsed(words, ranks);
    if (!found.config) return;
    double bytes = 0, few_bytes = 0;
    try {
      bytes = plan::predicted_bytes(*found.config, generation);
      auto const few = plan::with_few_microbatches(*found.config);
      few_bytes =
          few.batch.microbatches < found.config->batch.microbatches ? plan::predicted_bytes(few, generation) : bytes;
    } catch (base::Error const&) {
      return;
    }
    if (bytes > machine.device.memory) return;
    all.push_back({plan::predict_step(*found.config, machine, generation).seconds(), bytes, few_bytes,
                   plan::layout_of(*found.config)});
  };
  for (int tp = 1; tp <= ranks; ++tp)
    for (int pp = 1; pp <= ranks; ++pp)
      for (int cp = 1; cp <= ranks && cp <= base.model.seq_len / 2048 + 1; ++cp)
        for (int micro = 1; micro <= base.batch.global; ++micro)
          for (std::string const order : {"1f1b", "interleaved_1f1b", "zb_h1", "zb_v"})
            for (int v : order == "interleaved_1f1b" ? std::vector{2, 3, 4, 5, 6, 8} : std::vector{0}) {
              if (ranks % (tp * pp * cp) != 0 || (pp == 1 && order != "1f1b")) continue;
              int const dp = ranks / (tp * pp * cp);
              if (base.batch.global % (dp * micro) != 0) continue;
              auto const microbatches = base.batch.global / (dp * micro);
              if (v > 0 && (base.model.layers % (pp * v) != 0 || microbatches % pp != 0)) continue;
              for (int ep = 1; ep <= experts; ++ep)
                for (char const* recompute : {"none", "full"})
                  for (std::string const shard : {"none", "optimizer", "gradients", "parameters"})
                    for (char const* vocabulary : {"false", "true"})
                      if ((dp > 1 || shard == "none") && (pp > 1 || vocabulary == std::string("false")))
                        try_one({"parallel.tp=" + std::to_string(tp), "parallel.pp=" + std::to_string(pp),
                                 "parallel.cp=" + std::to_string(cp), "parallel.ep=" + std::to_string(ep),
                                 "parallel.dp=" + std::to_string(dp),
                                 std::string("parallel.sequence=") + (tp > 1 ? "true" : "false"),
                                 "batch.micro=" + std::to_string(micro),
                                 "batch.microbatches=" + std::to_string(microbatches),
                                 std::string("memory.recompute=") + recompute, "memory.shard=" + shard,
                                 "pipeline.schedule=" + order, "pipeline.virtual_stages=" + std::to_string(v),
                                 std::string("pipeline.vocab_parallel=") + vocabulary});
            }
  std::sort(all.begin(), all.end());
  return all;
}

// Models of all sizes that a test can try out, with memories in which all, some or no layouts fit.
TEST(Search, EqualsTryingEveryLayoutOf100Cases) {
  std::mt19937 random(7);
  auto const one_of = [&](std::vector<int> const& values) { return values[random() % values.size()]; };
  int empty = 0;
  for (int i = 0; i < 100; ++i) {
    int const heads = one_of({1, 2, 3, 4}), ranks = one_of({1, 2, 2, 3, 4}), seq = one_of({64, 128, 2048});
    std::vector<std::string> words{"model.heads=" + std::to_string(heads),
                                   "model.hidden=" + std::to_string(heads * one_of({32, 64})),
                                   "model.layers=" + std::to_string(one_of({1, 2, 3, 4})),
                                   "model.seq_len=" + std::to_string(seq),
                                   "batch.global=" + std::to_string(one_of({1, 2, 3, 4})),
                                   "run.precision=bf16"};
    if (i % 4 == 0) words.insert(words.begin(), "model.preset=llama-124m");
    if (i % 4 == 1) words.insert(words.begin(), "model.preset=mixtral-tiny");
    words.push_back("model.kv_heads=" + std::to_string(heads));
    config::Config base;
    try {
      base = input(words);
    } catch (std::runtime_error const&) {
      ADD_FAILURE() << base::join(words);
      continue;
    }
    auto machine = cluster(one_of({0, 1}) == 0 ? "dgx-h100" : "frontier");
    machine.device.memory = 1.2e9 + 1e5 * static_cast<double>(random() % 5000);
    auto const all = by_trying(words, machine, ranks);
    plan::SearchResult result;
    try {
      result = plan::search_layouts(base, machine, plan::kernels_of("", ""), {.ranks = ranks, .fixed = {}, .top = 3});
    } catch (base::Error const&) {
      // No layout divides the sizes.
    }
    ASSERT_EQ(result.layouts.size(), std::min<std::size_t>(3, all.size())) << base::join(words, " ") << ' ' << ranks;
    for (std::size_t k = 0; k < result.layouts.size(); ++k)
      EXPECT_DOUBLE_EQ(result.layouts[k].time.seconds(), all[k].seconds) << base::join(words, " ") << ' ' << ranks;
    empty += all.empty() ? 1 : 0;
    if (i % 8 != 0 || all.empty()) continue;
    auto const front = plan::search_layouts(base, machine, plan::kernels_of("", ""),
                                            {.ranks = ranks, .fixed = {}, .top = 500, .front = true});
    std::size_t next = 0;
    double smallest = 1e30;
    for (auto const& t : all) {
      if (t.bytes >= smallest) continue;
      smallest = t.bytes;
      ASSERT_LT(next, front.layouts.size()) << base::join(words, " ") << ' ' << ranks;
      EXPECT_DOUBLE_EQ(front.layouts[next].time.seconds(), t.seconds) << base::join(words, " ") << ' ' << ranks;
      EXPECT_EQ(front.layouts[next++].bytes, t.bytes) << base::join(words, " ") << ' ' << ranks;
    }
    EXPECT_EQ(next, front.layouts.size());
  }
  EXPECT_GT(empty, 2);
  EXPECT_LT(empty, 50);
}

TEST(Search, FindsWhatTryingEveryLayoutFinds) {
  std::vector<std::string> const words{"model.layers=4",    "model.hidden=256", "model.heads=4",
                                       "model.seq_len=128", "batch.global=8",   "run.precision=bf16"};
  auto const base = input(words);
  for (auto const& [name, memory] : {std::pair("dgx-h100", 1.4e9), std::pair("frontier", 1e12)}) {
    auto machine = cluster(name);
    machine.device.memory = memory;
    int const ranks = 8;
    auto const result =
        plan::search_layouts(base, machine, plan::kernels_of("", ""), {.ranks = ranks, .fixed = {}, .top = 500});
    auto const all = by_trying(words, machine, ranks);
    ASSERT_EQ(result.layouts.size(), std::min<std::size_t>(500, all.size())) << name;
    for (std::size_t i = 0; i < result.layouts.size(); ++i)
      EXPECT_DOUBLE_EQ(result.layouts[i].time.seconds(), all[i].seconds) << all[i].layout;
  }
}

// A longer list begins with a shorter one. With a divided vocabulary all microbatches may need more than the few that a
// search plans first, so that layouts which it took for quick ones fall out at its end, and slower ones come in.
TEST(Search, ALongerListBeginsWithAShorterOne) {
  auto const base = input({"model.preset=gemma2-2b", "model.seq_len=4096", "batch.global=64", "run.precision=bf16"});
  auto machine = cluster("dgx-h100");
  machine.device.memory = 20.0 * 1024 * 1024 * 1024;
  auto const list = [&](int top) {
    return plan::search_layouts(base, machine, plan::kernels_of("", ""), {.ranks = 8, .fixed = {}, .top = top}).layouts;
  };
  auto const longest = list(60);
  ASSERT_EQ(longest.size(), 60);
  int more = 0;
  for (auto const& l : longest) {
    EXPECT_EQ(l.bytes, plan::predicted_bytes(l.config, plan::kernels_of("", ""))) << plan::layout_of(l.config);
    EXPECT_LE(l.bytes, machine.device.memory) << plan::layout_of(l.config);
    more += plan::predicted_bytes(plan::with_few_microbatches(l.config), plan::kernels_of("", "")) < l.bytes;
  }
  EXPECT_GT(more, 0);
  for (int top : {1, 5, 10, 20, 40}) {
    auto const shorter = list(top);
    ASSERT_EQ(shorter.size(), static_cast<std::size_t>(top));
    for (std::size_t n = 0; n < shorter.size(); ++n)
      EXPECT_EQ(plan::layout_of(shorter[n].config), plan::layout_of(longest[n].config)) << n << " of " << top;
  }
}

// The bound that spares most plans of memory is no more than the plan says, and a plan of few microbatches decides
// nothing: where a rank has the memory that some layout needs, to the byte, that layout is found. On hosts libraries
// take little, so that layers count.
TEST(Search, FindsALayoutThatFillsTheMemory) {
  struct Case {
    int ranks, layers, hidden, seq, vocabulary, batch;
    char const* precision;
    std::vector<std::string> model;
  };
  std::vector<std::string> const dense{}, gemma{"model.preset=gemma2-2b"},
      experts{"model.moe.experts=4", "model.moe.ffn=2048", "model.moe.first_dense=2"};
  std::mt19937 random(11);
  auto const host = plan::kernels_of("host", "");
  auto machine = cluster("epyc");
  int divided = 0;
  for (auto const& c : {Case{6, 7, 192, 64, 300, 6, "bf16", dense}, Case{2, 4, 768, 64, 300, 12, "fp32", experts},
                        Case{2, 8, 192, 64, 300, 12, "bf16", gemma}, Case{3, 5, 192, 512, 50000, 6, "fp32", dense}}) {
    std::vector<std::string> words{"model.heads=6",
                                   "model.kv_heads=6",
                                   fmt::format("model.hidden={}", c.hidden),
                                   fmt::format("model.layers={}", c.layers),
                                   fmt::format("model.seq_len={}", c.seq),
                                   fmt::format("model.vocab_size={}", c.vocabulary),
                                   fmt::format("batch.global={}", c.batch),
                                   fmt::format("run.precision={}", c.precision)};
    words.insert(words.begin(), c.model.begin(), c.model.end());
    machine.device.memory = 1e15;
    auto const all = by_trying(words, machine, c.ranks, "host");
    ASSERT_FALSE(all.empty()) << base::join(words, " ");
    for (int k = 0; k < 6; ++k) {
      machine.device.memory = all[random() % all.size()].bytes;
      std::vector<Tried> fit;
      for (auto const& t : all)
        if (std::max(t.bytes, t.few_bytes) <= machine.device.memory) fit.push_back(t);
      std::size_t const top = k % 3 == 0 ? 4 : 400;
      auto const found = plan::search_layouts(input(words), machine, host,
                                              {.ranks = c.ranks, .fixed = {}, .top = static_cast<int>(top)});
      SCOPED_TRACE(base::join(words, " ") + fmt::format(", {} ranks of {} bytes", c.ranks, machine.device.memory));
      ASSERT_EQ(found.layouts.size(), std::min(top, fit.size()));
      for (std::size_t n = 0; n < found.layouts.size(); ++n) {
        ASSERT_EQ(found.layouts[n].time.seconds(), fit[n].seconds) << n << ": " << fit[n].layout;
        ASSERT_LE(found.layouts[n].bytes, machine.device.memory) << plan::layout_of(found.layouts[n].config);
        divided += found.layouts[n].config.divides_vocabulary() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(divided, 100);
}

// Schedules, and keys of the input, by which a rank holds less than the first rank of 1F1B does.
TEST(Search, TheBoundKnowsWhatHoldsLess) {
  auto const host = plan::kernels_of("host", "");
  auto machine = cluster("epyc");
  std::vector<std::string> const fixed{"parallel.tp",
                                       "parallel.cp",
                                       "parallel.pp",
                                       "parallel.dp",
                                       "parallel.ep",
                                       "batch.micro",
                                       "pipeline.schedule",
                                       "pipeline.virtual_stages",
                                       "memory.recompute",
                                       "memory.shard",
                                       "pipeline.vocab_parallel"};
  using Words = std::vector<std::string>;
  for (Words const& more :
       {Words{"pipeline.schedule=v_min"}, Words{"pipeline.schedule=v_half"}, Words{"pipeline.schedule=sequential"},
        Words{"pipeline.schedule=round_robin"}, Words{"pipeline.schedule=gpipe", "memory.recompute=full"},
        Words{"memory.recompute=full"}, Words{"memory.recompute=full", "memory.recompute_group=2"},
        Words{"memory.recompute=full", "memory.recompute_every=2"},
        Words{"memory.recompute=full", "memory.recompute_microbatches_kept=2"},
        Words{"memory.offload_activations=disk"}, Words{"pipeline.layers_per_stage=[1,2,2,7]"},
        Words{"pipeline.layers_per_stage=[6,2,2,2]"},
        Words{"pipeline.layers_per_stage=cost", "model.vocab_size=20000"}}) {
    SCOPED_TRACE(base::join(more, " "));
    Words words{"model.hidden=128",   "model.heads=4",      "model.layers=12", "model.vocab_size=64",
                "model.seq_len=1024", "run.precision=fp32", "batch.global=24", "parallel.pp=4"};
    words.insert(words.end(), more.begin(), more.end());
    auto const c = input(words);
    machine.device.memory = 1e15;
    auto const roomy = plan::search_layouts(c, machine, host, {.ranks = 4, .fixed = fixed, .top = 1});
    ASSERT_EQ(roomy.layouts.size(), 1U);
    machine.device.memory = roomy.layouts.front().bytes;
    auto const tight = plan::search_layouts(c, machine, host, {.ranks = 4, .fixed = fixed, .top = 1});
    ASSERT_EQ(tight.layouts.size(), 1U);
    EXPECT_FALSE(tight.rejected.contains("memory"));
  }
}

// The bound that spares most plans of memory is below the plan itself: the plan decides.
TEST(Search, WhatTheMemoryPlanSaysMustFit) {
  auto const base = input({"model.layers=4", "model.hidden=256", "model.heads=4", "model.seq_len=128", "batch.global=8",
                           "run.precision=bf16"});
  auto machine = cluster("dgx-h100");
  auto const largest = [&] {
    double most = 0;
    for (auto const& l :
         plan::search_layouts(base, machine, plan::kernels_of("", ""), {.ranks = 4, .fixed = {}, .top = 500}).layouts)
      most = std::max(most, l.bytes);
    return most;
  };
  double const before = largest();
  machine.device.memory = before - 1;
  EXPECT_GT(largest(), 0);
  EXPECT_LT(largest(), before);
}

TEST(Search, KeepsWhatIsFixed) {
  auto const base = input({"model.layers=4", "model.hidden=256", "model.heads=4", "model.seq_len=128", "batch.global=8",
                           "run.precision=bf16", "parallel.tp=2", "parallel.dp=2", "memory.shard=optimizer"});
  auto const result = plan::search_layouts(base, cluster("dgx-h100"), plan::kernels_of("", ""),
                                           {.ranks = 8, .fixed = {"parallel.tp", "memory.shard"}, .top = 50});
  ASSERT_FALSE(result.layouts.empty());
  for (auto const& l : result.layouts) {
    EXPECT_EQ(l.config.parallel.tp, 2);
    EXPECT_EQ(l.config.memory.shard, config::Shard::optimizer);
    EXPECT_EQ(l.config.num_ranks(), 8);
    EXPECT_EQ(l.config.batch.global, 8);
  }
}

TEST(Search, SaysWhatNothingFits) {
  auto const base = input({"model.layers=4", "model.hidden=256", "model.heads=4", "model.seq_len=128", "batch.global=8",
                           "run.precision=bf16"});
  auto machine = cluster("dgx-h100");
  machine.device.memory = 1e6;
  auto const result =
      plan::search_layouts(base, machine, plan::kernels_of("", ""), {.ranks = 4, .fixed = {}, .top = 5});
  EXPECT_TRUE(result.layouts.empty());
  EXPECT_GT(result.least_bytes, 1e6);
  EXPECT_GT(result.rejected.at("memory"), 0);
  EXPECT_THROW(plan::search_layouts(base, machine, plan::kernels_of("", ""), {.ranks = 7, .fixed = {}, .top = 5}),
               base::Error);
}

}  // namespace
