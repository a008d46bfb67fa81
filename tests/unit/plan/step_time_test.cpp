// SPDX-License-Identifier: Apache-2.0
// Predicted steps: against an independent program in Python (its numbers are in the table below), by what must not
// change.
#include "planned_inputs.hpp"

#include <p3d/plan/layout_choice.hpp>
#include <p3d/plan/step_time.hpp>

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <tuple>

namespace {
using namespace p3d;
using plan::TimePart;

using test::cluster;
using test::input;

std::vector<std::string> gpt(int layers, int hidden, int heads, int seq) {
  return {"model.vocab_size=50257",
          "model.layers=" + std::to_string(layers),
          "model.hidden=" + std::to_string(hidden),
          "model.heads=" + std::to_string(heads),
          "model.seq_len=" + std::to_string(seq),
          "run.precision=fp16",
          "memory.recompute=full"};
}
std::vector<std::string> with(std::vector<std::string> a, std::vector<std::string> const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A measured step is compared with the prediction only where both are of the same tokens.
TEST(StepTime, GradesStepsOfTheSameWork) {
  auto c = input({"plan.cluster=" + std::string(P3D_SOURCE_DIR) + "/inputs/clusters/epyc.toml", "run.precision=fp64"});
  EXPECT_NE(plan::grade_step(c, 0.5).find("measured 0.5 s, "), std::string::npos) << plan::grade_step(c, 0.5);
  EXPECT_EQ(plan::grade_step(c, 0.0), "") << "no step was measured";
  c.batch.variable = true;
  EXPECT_EQ(plan::grade_step(c, 0.5), "") << "samples are shorter than those of the prediction";
  c.batch.variable = false;
  EXPECT_EQ(plan::not_predicted(c), "");
  c.memory.offload_optimizer = config::OffloadTo::host;
  EXPECT_EQ(plan::not_predicted(c), "the copies of memory.offload_optimizer = \"host\"");
  EXPECT_EQ(plan::grade_step(c, 0.5), "");
}

/// Seconds by part of three rows of benchmarks/plan/rows.csv, from the prototype of the model in Python.
TEST(StepTime, AgreesWithAnIndependentProgram) {
  struct Row {
    std::vector<std::string> input;
    double step, gemm_forward, attention, tensor, head, data, jitter;
  };
  for (auto const& r :
       {Row{with(gpt(30, 3072, 32, 2048), {"parallel.dp=64", "batch.micro=4", "batch.global=512"}), 3.68674025,
            0.842236766, 1.46172216, 0, 0.0698244197, 0.156008141, 0.103346989},
        Row{with(gpt(30, 3072, 32, 2048), {"parallel.tp=8", "parallel.dp=8", "batch.micro=32", "batch.global=512"}),
            5.18980536, 0.832569855, 1.46172216, 1.22201653, 0.0881293782, 0.140297619, 0.145481026},
        Row{with(gpt(30, 3072, 32, 2048), {"parallel.tp=16", "parallel.dp=4", "batch.micro=16", "batch.global=512"}),
            10.8422735, 0.876559062, 1.46394856, 6.31627776, 0.150859297, 0.0609806976, 0.30393145}}) {
    auto const t = plan::predict_step(input(r.input), cluster("vtrain-a100"), plan::kernels_of("unfused", ""));
    EXPECT_NEAR(t.seconds(), r.step, 1e-7 * r.step);
    EXPECT_NEAR(t[TimePart::gemm_forward], r.gemm_forward, 1e-7);
    EXPECT_NEAR(t[TimePart::attention], r.attention, 1e-7);
    EXPECT_NEAR(t[TimePart::tensor], r.tensor, 1e-7);
    EXPECT_NEAR(t[TimePart::head], r.head, 1e-7);
    EXPECT_NEAR(t[TimePart::data], r.data, 1e-7);
    EXPECT_NEAR(t[TimePart::jitter], r.jitter, 1e-7);
  }
}

TEST(StepTime, EveryPartIsUsedAndTheirSumIsTheStep) {
  auto const a = plan::predict_step(
      input(with(gpt(32, 4096, 32, 4096),
                 {"parallel.tp=2", "parallel.pp=2", "parallel.dp=4", "parallel.cp=2", "parallel.sequence=true",
                  "batch.micro=1", "batch.global=64", "memory.shard=parameters"})),
      cluster("dgx-h100"), plan::kernels_of("flash", ""));
  auto const b = plan::predict_step(input({"model.preset=mixtral-tiny", "parallel.ep=4", "parallel.dp=4",
                                           "batch.global=16", "memory.shard=optimizer", "run.precision=bf16"}),
                                    cluster("dgx-h100"), plan::kernels_of("flash", ""));
  double sum = 0;
  for (auto part : base::values_of<TimePart>()) {
    EXPECT_GT(a[part] + b[part], 0) << base::to_string(part);
    sum += a[part];
  }
  EXPECT_DOUBLE_EQ(sum, a.seconds());
  EXPECT_LT(a.low, a.seconds());
  EXPECT_GT(a.high, a.seconds());
}

// A backward exchange moves keys and values, and their gradients back: twice a forward one. With full recomputation the
// forward one is made twice.
TEST(StepTime, ExchangesOfKeysByDirection) {
  auto machine = cluster("dgx-h100");
  machine.levels[0].bandwidth /= 1000;  // otherwise attention hides it
  auto const seconds = [&](char const* recompute) {
    return plan::predict_step(input(with(gpt(8, 1024, 16, 8192), {"parallel.cp=4", "batch.micro=1", "batch.global=4",
                                                                  std::string("memory.recompute=") + recompute})),
                              machine, plan::kernels_of("unfused", ""))[TimePart::context];
  };
  EXPECT_GT(seconds("none"), 0);
  EXPECT_NEAR(seconds("full") / seconds("none"), 4.0 / 3, 1e-9);
}

// A layer's last linear is not made again by p3d on hosts, unless a norm follows: a third of a GPT layer's weights in
// all.
TEST(StepTime, FullRecomputationOfHostsLeavesOutTheLastLinear) {
  auto const remade = [](char const* kernels, char const* more, TimePart part = TimePart::gemm_forward) {
    auto const seconds = [&](char const* recompute) {
      std::vector<std::string> words{std::string("memory.recompute=") + recompute, "parallel.tp=2"};
      if (words[0].ends_with("full") || !std::string(more).starts_with("memory.")) words.emplace_back(more);
      return plan::predict_step(input(with(gpt(8, 1024, 16, 512), words)), cluster("dgx-h100"),
                                plan::kernels_of(kernels, ""))[part];
    };
    return seconds("full") / seconds("none") - 1;
  };
  EXPECT_NEAR(remade("host", "model.norm_placement=pre"), 2.0 / 3, 0.05);
  EXPECT_NEAR(remade("host", "model.norm_placement=post"), 1.0, 0.05);
  EXPECT_NEAR(remade("flash", "model.norm_placement=pre"), 1.0, 0.05);
  EXPECT_NEAR(remade("host", "memory.recompute_group=4"), 1 - 0.25 / 3, 0.05) << "only the last of a group";
  // Two sums over tp in each pass: one of them is made again, and none where they are kept.
  EXPECT_NEAR(remade("host", "model.norm_placement=pre", TimePart::tensor), 0.25, 1e-9);
  EXPECT_NEAR(remade("host", "parallel.sequence=true", TimePart::tensor), 0.375, 1e-9);
  EXPECT_NEAR(remade("host", "memory.recompute_communication=false", TimePart::tensor), 0, 1e-9);
}

// A model of DeepSeek-V3's sizes: ranks of tp exchange latents of 2,112 numbers a token where they would exchange
// 7,168.
TEST(StepTime, LatentAttentionExchangesLatents) {
  auto const seconds = [](std::vector<std::string> const& more) {
    std::vector<std::string> words{"model.hidden=7168",  "model.layers=4",          "model.heads=128",
                                   "model.ffn=18432",    "model.norm=rmsnorm",      "model.activation=swiglu",
                                   "model.bias=false",   "model.position=rope",     "model.head_dim=192",
                                   "model.seq_len=4096", "model.vocab_size=129280", "parallel.tp=8",
                                   "run.precision=bf16"};
    words.insert(words.end(), more.begin(), more.end());
    return plan::predict_step(input(words), cluster("dgx-h100"), plan::kernels_of("flash", ""));
  };
  auto const latent = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"model.mla.kv_lora_rank=512", "model.mla.q_lora_rank=1536",
                               "model.mla.qk_nope_head_dim=128", "model.mla.qk_rope_head_dim=64"});
    return more;
  };
  auto const plain = seconds({})[TimePart::tensor];
  double const input_sum = plain / 4,
               latent_sum = input_sum * 2112 / 7168;  // two sums each way; shorter ones are less efficient
  EXPECT_NEAR(seconds(latent({}))[TimePart::tensor], 3 * input_sum + latent_sum, 0.08 * plain);
  EXPECT_NEAR(seconds(latent({"parallel.sequence=true"}))[TimePart::tensor], 3 * input_sum + latent_sum, 0.08 * plain);
  EXPECT_NEAR(seconds(latent({"model.mla.q_lora_rank=0"}))[TimePart::tensor], plain + input_sum * 576 / 7168,
              0.08 * plain);
  // Products with 192 and 128 columns in place of 192 twice; the linears are narrower, too.
  EXPECT_NEAR(seconds(latent({}))[TimePart::attention] / seconds({})[TimePart::attention], 320.0 / 384, 0.05);
  EXPECT_LT(seconds(latent({}))[TimePart::gemm_forward], seconds({})[TimePart::gemm_forward]);
}

// A ring of 8 brings latents of 576 numbers where keys and values would be 5,120. Keys and values of 7 other ranks'
// tokens are made of them: 7 more products with kv_up in each pass, and as many forward ones again in backward.
TEST(StepTime, LatentsTravelOverContext) {
  auto machine = cluster("dgx-h100");
  for (auto& level : machine.levels) level.bandwidth /= 10000, level.share.clear();  // otherwise attention hides all
  auto const seconds = [&](std::vector<std::string> const& more) {
    std::vector<std::string> words{"model.hidden=7168",
                                   "model.layers=4",
                                   "model.heads=128",
                                   "model.ffn=18432",
                                   "model.norm=rmsnorm",
                                   "model.activation=swiglu",
                                   "model.bias=false",
                                   "model.position=rope",
                                   "model.seq_len=8192",
                                   "model.vocab_size=129280",
                                   "model.mla.q_lora_rank=1536",
                                   "model.mla.qk_nope_head_dim=128",
                                   "model.mla.qk_rope_head_dim=64",
                                   "parallel.tp=8",
                                   "parallel.cp=8",
                                   "context.exchange=ring",
                                   "run.precision=bf16"};
    words.insert(words.end(), more.begin(), more.end());
    return plan::predict_step(input(words), machine, plan::kernels_of("flash", ""));
  };
  auto const latents = seconds({"model.mla.kv_lora_rank=512"}), wide = seconds({"model.mla.kv_lora_rank=8192"});
  EXPECT_GT(wide[TimePart::context] / latents[TimePart::context], 8.0);
  EXPECT_LT(wide[TimePart::context] / latents[TimePart::context], 9.5);
  // Without cp a rank has an eighth of the tokens in the same linears, but for the seven products.
  auto const alone = seconds({"model.mla.kv_lora_rank=512", "parallel.cp=1", "model.seq_len=1024"});
  // Weights of a rank: all of what makes latents, an eighth of all else.
  double const weights = 512 * 32768 / 8.0;
  double const layer = 7168 * 2112.0 + (1536 * 24576.0 + 16384 * 7168.0 + 3 * 7168.0 * 18432) / 8 + weights;
  EXPECT_NEAR(latents[TimePart::gemm_forward] / alone[TimePart::gemm_forward], 1 + 7 * weights / layer, 0.05);
  EXPECT_NEAR(latents[TimePart::gemm_input] / alone[TimePart::gemm_input], 1 + 14 * weights / layer, 0.08);
  EXPECT_NEAR(latents[TimePart::gemm_weight] / alone[TimePart::gemm_weight], 1 + 7 * weights / layer, 0.05);
}

// Every rank of tp norms all latents of its rows, which parallel.sequence divides.
TEST(StepTime, NormsOfLatentsAreNotDividedOverHeads) {
  auto const memory = [&](std::vector<std::string> const& more) {
    std::vector<std::string> words{"model.hidden=7168",
                                   "model.layers=4",
                                   "model.heads=128",
                                   "model.norm=rmsnorm",
                                   "model.bias=false",
                                   "model.position=rope",
                                   "model.mla.kv_lora_rank=512",
                                   "model.mla.q_lora_rank=1536",
                                   "model.mla.qk_nope_head_dim=128",
                                   "model.mla.qk_rope_head_dim=64",
                                   "model.seq_len=4096",
                                   "batch.micro=1",
                                   "batch.global=1",
                                   "parallel.tp=8",
                                   "run.precision=bf16"};
    words.insert(words.end(), more.begin(), more.end());
    return plan::predict_step(input(words), cluster("dgx-h100"), plan::kernels_of("flash", ""))[TimePart::memory];
  };
  auto const numbers = [&](std::vector<std::string> const& more) {
    return memory(more) - memory(with(more, {"model.mla.q_lora_rank=512"}));  // 1,024 columns fewer have a norm
  };
  EXPECT_NEAR(numbers({}) / numbers({"parallel.sequence=true"}), 8, 0.01);
}

// Sinks read and write the output of attention once more, biases of experts what the linears have given.
TEST(StepTime, SinksAndBiasesOfExpertsWaitForMemory) {
  auto const seconds = [](std::vector<std::string> const& more) {
    std::vector<std::string> words{"model.preset=mixtral-8x7b", "model.layers=4", "model.moe.aux_loss=none",
                                   "run.precision=bf16"};
    words.insert(words.end(), more.begin(), more.end());
    return plan::predict_step(input(words), cluster("dgx-h100"), plan::kernels_of("flash", ""));
  };
  auto const plain = seconds({}), sinks = seconds({"model.attention_sinks=true"}),
             biases = seconds({"model.moe.bias=true"});
  for (auto const& more : {sinks, biases}) {
    EXPECT_GT(more[TimePart::memory], plain[TimePart::memory]);
    EXPECT_LT(more[TimePart::memory], 1.5 * plain[TimePart::memory]);
    EXPECT_EQ(more[TimePart::gemm_forward], plain[TimePart::gemm_forward]);
  }
}

// The last of several stages has the head, the first the embedding: their gradients are summed on different ranks.
TEST(StepTime, OneStageHoldsOneOfEmbeddingAndHead) {
  auto const data = [](bool tied) {
    return plan::predict_step(
        input(with(gpt(8, 1024, 16, 1024), {"parallel.pp=2", "parallel.dp=4", "batch.micro=1", "batch.global=16",
                                            std::string("model.tied_embeddings=") + (tied ? "true" : "false")})),
        cluster("dgx-h100"), plan::kernels_of("flash", ""))[TimePart::data];
  };
  EXPECT_GT(data(true), 0);
  EXPECT_DOUBLE_EQ(data(true), data(false));
}

// The cap of logits is one pass more over them: read and written in 16 bits, at 3.35e12 bytes/s.
TEST(StepTime, CappedLogitsTakeAPassMore) {
  auto const step = [](char const* cap) {
    return plan::predict_step(
        input(with(gpt(8, 1024, 16, 1024), {"model.vocab_size=51200", "batch.micro=4", "batch.global=4",
                                            std::string("model.logits_softcap=") + cap})),
        cluster("dgx-h100"), plan::kernels_of("flash", ""));
  };
  double const more = step("30").seconds() - step("0").seconds(), pass = 4.0 * 4 * 1024 * 51200 / 3.35e12;
  EXPECT_GT(more, 0.9 * pass);
  EXPECT_LT(more, 2 * pass);
}

// Steps of few large operations are known better than steps that launches bound.
TEST(StepTime, LaunchesWidenTheInterval) {
  auto const width = [](int hidden) {
    auto const t =
        plan::predict_step(input(with(gpt(8, hidden, 16, 512), {"parallel.dp=2", "batch.micro=1", "batch.global=4"})),
                           cluster("dgx-h100"), plan::kernels_of("flash", ""));
    return (t.high - t.low) / t.seconds();
  };
  EXPECT_LT(width(8192), 0.3);
  EXPECT_GT(width(64), 0.34);
}

TEST(StepTime, BetterMachinesAreNotSlower) {
  auto const c = input(with(gpt(32, 4096, 32, 2048),
                            {"parallel.tp=4", "parallel.pp=2", "parallel.dp=8", "batch.micro=2", "batch.global=64"}));
  auto const& k = plan::kernels_of("flash", "");
  auto const machine = cluster("dgx-h100");
  double const now = plan::predict_step(c, machine, k).seconds();
  auto const after = [&](auto const& change) {
    auto better = machine;
    change(better);
    return plan::predict_step(c, better, k).seconds();
  };
  EXPECT_LT(after([](auto& m) { m.device.fp16 *= 1.1; }), now);
  EXPECT_LT(after([](auto& m) { m.device.bandwidth *= 1.1; }), now);
  EXPECT_LT(after([](auto& m) { m.attention *= 1.1; }), now);
  EXPECT_LT(after([](auto& m) { m.levels[0].bandwidth *= 1.1; }), now);
  EXPECT_LT(after([](auto& m) { m.levels[1].bandwidth *= 1.1; }), now);
  EXPECT_LT(after([](auto& m) { m.levels[0].latency *= 0.9; }), now);
}

// Schedules that the formula of 1F1B does not fit are simulated: with equal parts GPipe has the bubble of 1F1B, and
// zero-bubble schedules have less.
TEST(StepTime, SchedulesHaveTheirOwnBubbles) {
  auto const bubble = [](char const* schedule) {
    auto const c =
        input(with(gpt(32, 4096, 32, 2048), {"parallel.pp=4", "parallel.dp=2", "batch.micro=1", "batch.global=32",
                                             "memory.recompute=none", std::string("pipeline.schedule=") + schedule}));
    auto const t = plan::predict_step(c, cluster("dgx-h100"), plan::kernels_of("flash", ""));
    return t[TimePart::bubble] / t.seconds();
  };
  EXPECT_NEAR(bubble("gpipe"), bubble("1f1b"), 0.02);
  EXPECT_LT(bubble("zb_h1"), 0.8 * bubble("1f1b"));
  EXPECT_LT(bubble("zb_v"), 0.8 * bubble("1f1b"));
}

// Some schedules lose time with every microbatch, and stages with more layers make all others wait.
TEST(StepTime, BubblesGrowWithMicrobatchesAndUnevenStages) {
  auto const seconds = [](std::string const& schedule, int microbatches, std::string const& layers = "even") {
    auto const c =
        input({"model.layers=12", "model.hidden=128", "model.heads=4", "model.seq_len=1024", "run.precision=fp32",
               "parallel.pp=6", "batch.micro=1", "batch.global=" + std::to_string(microbatches),
               "pipeline.schedule=" + schedule, "pipeline.layers_per_stage=" + layers});
    return plan::predict_step(c, cluster("epyc"), plan::kernels_of("host", "")).seconds();
  };
  EXPECT_NEAR(seconds("sequential", 48) / seconds("sequential", 12), 4, 0.05);
  EXPECT_GT(seconds("v_min", 48) / seconds("v_min", 12), 3.4);
  EXPECT_LT(seconds("zb_h1", 48) / seconds("zb_h1", 12), 3.6);
  for (auto const* schedule : {"1f1b", "gpipe", "zb_h1"})
    EXPECT_GT(seconds(schedule, 24, "[1,1,1,1,1,7]") / seconds(schedule, 24), 2.4) << schedule;
  EXPECT_GT(seconds("1f1b", 24), seconds("interleaved_1f1b", 24)) << "its own number of chunks";
}

TEST(StepTime, RefusesATypeWithoutARate) {
  try {
    plan::predict_step(
        input({"run.precision=fp64"}),
        [] {
          auto c = cluster("dgx-h100");
          c.device.fp64 = 0;
          return c;
        }(),
        plan::kernels_of("", ""));
    FAIL();
  } catch (base::Error const& e) {
    EXPECT_EQ(e.text().where, "run.precision");
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
  }
}

TEST(StepTime, RefusesUnknownKernels) {
  try {
    plan::kernels_of("fusd", "line 3");
    FAIL();
  } catch (base::Error const& e) {
    EXPECT_EQ(e.text().where, "line 3");
    EXPECT_NE(e.text().expected.find("fused"), std::string::npos);
  }
}

}  // namespace
