// SPDX-License-Identifier: Apache-2.0
// Sequence parallelism: losses, gradients and weights are those of one rank, in every layout and schedule; the bytes
// over tp are those of the table in arXiv 2205.05198, section 4.2.2; memory is what was predicted, and less.

#include <p3d/device/environment.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/layout/shards.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/traffic.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/processor.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Keys = std::vector<std::string>;

constexpr int steps = 2;

/// A microbatch of 7 tokens: no tp above 1 divides it.
config::Config make_config(bool llama, int ranks, Keys const& more) {
  Keys const own{llama ? "model.preset=llama-tiny" : "model.preset=gpt2-tiny",
                 "model.heads=12",
                 "model.kv_heads=12",
                 "model.hidden=24",
                 "model.ffn=48",
                 "model.vocab_size=256",
                 "model.seq_len=7",
                 "model.layers=4",
                 "batch.micro=1",
                 "batch.global=6",
                 "model.dropout=0.1",
                 "run.precision=fp64",
                 "optimizer.lr=1e-2",
                 "optimizer.eps=1e-4",  // else rounding decides which way a weight without a gradient goes
                 "optimizer.grad_clip=0.5",
                 "comm.bucket_mb=0.02",
                 test::licence_text()};
  return test::config_of(test::joined({own, more}), ranks);
}

/// What is compared, by name: losses and norms, gradients of the last step, weights, a validation loss, a sample.
struct Outcome {
  std::vector<std::string> names;
  std::vector<std::vector<double>> numbers;
  void add(std::string name, std::vector<double> of) {
    names.push_back(std::move(name));
    numbers.push_back(std::move(of));
  }
};

template <class P>
Outcome train(config::Config const& config, comm::Communicator const& world) {
  engine::Trainer<P> trainer(config, world);
  Outcome out;
  std::vector<double> losses, norms;
  for (int s = 0; s < steps; ++s) {
    trainer.inspection().keep_gradients(s + 1 == steps);
    auto const result = trainer.step();
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  out.add("losses", losses);
  out.add("norms", norms);
  for (auto const& spec : trainer.plan().table.specs()) {
    out.add("gradient of " + spec.name, trainer.inspection().gather_gradient(spec.name));
    out.add(spec.name, trainer.inspection().gather_value(spec.name));
  }
  out.add("validation loss", {trainer.evaluate(1)});
  std::vector<double> text;
  for (int c : test::greedy(trainer, "The", 3)) text.push_back(c);
  out.add("sample", text);
  EXPECT_EQ(trainer.inspection().activation_high_water(), trainer.inspection().activation_capacity());
  return out;
}

/// Of rank 0 alone, known to all.
template <class P>
Outcome train_alone(config::Config const& config, comm::Communicator& world) {
  Outcome out;
  if (world.rank() == 0) out = train<P>(config, comm::Communicator::self());
  auto count = static_cast<std::int64_t>(out.names.size());
  world.broadcast(&count, 1, comm::Type::int64, 0).wait();
  out.names.resize(static_cast<std::size_t>(count));
  out.numbers.resize(out.names.size());
  for (std::size_t i = 0; i < out.names.size(); ++i) {
    comm::broadcast_text(world, out.names[i], 0);
    auto n = static_cast<std::int64_t>(out.numbers[i].size());
    world.broadcast(&n, 1, comm::Type::int64, 0).wait();
    out.numbers[i].resize(static_cast<std::size_t>(n));
    world.broadcast(out.numbers[i].data(), n, comm::Type::float64, 0).wait();
  }
  return out;
}

/// The largest difference of each, relative to its own largest number. Gradients that are zero but for rounding (those
/// of keys' biases) are compared with the norm of all.
/// Returns the largest of all.
double expect_close(Outcome const& found, Outcome const& expected, double tolerance) {
  EXPECT_EQ(found.names, expected.names);
  if (found.names != expected.names) return 1.0;
  double const norm = expected.numbers[1].back();
  double worst = 0.0;
  for (std::size_t i = 0; i < found.names.size(); ++i) {
    auto const &a = found.numbers[i], &b = expected.numbers[i];
    EXPECT_EQ(a.size(), b.size()) << found.names[i];
    double difference = 0.0, largest = 0.0;
    for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
      EXPECT_TRUE(std::isfinite(a[k])) << found.names[i];
      difference = std::max(difference, std::fabs(a[k] - b[k]));
      largest = std::max(largest, std::fabs(b[k]));
    }
    bool const zero = found.names[i].ends_with("attn.k.bias");
    double const relative = difference / (zero ? norm : largest);
    EXPECT_LE(relative, tolerance) << found.names[i];
    worst = std::max(worst, relative);
  }
  return worst;
}

struct Case {
  int dp, tp, pp;
  char const* schedule;
  std::vector<Keys> settings;
};

Keys layout_keys(Case const& c) {
  return {fmt::format("parallel.dp={}", c.dp), fmt::format("parallel.tp={}", c.tp), fmt::format("parallel.pp={}", c.pp),
          fmt::format("pipeline.schedule={}", c.schedule), "parallel.sequence=true"};
}

std::vector<Case> cases(int ranks) {
  Keys const none, full{"memory.recompute=full"}, list{"memory.recompute=[\"norm\", \"activation\", \"attention\"]"},
      norm{"memory.recompute=[\"norm\"]"}, groups{"memory.recompute=full", "memory.recompute_group=2"},
      sums{"memory.recompute=full", "memory.recompute_communication=false"},
      some{"memory.recompute=full", "memory.recompute_layers=1", "memory.recompute_microbatches_kept=1"},
      optimizer{"memory.shard=optimizer"}, gradients{"memory.shard=gradients", "memory.recompute=full"},
      parameters{"memory.shard=parameters", "memory.gather=microbatch", "memory.shard_layers=2"},
      each{"memory.shard=gradients", "memory.reduce=microbatch"}, disk{"memory.offload_activations=disk"},
      hybrid{"batch.global=12", "memory.shard=parameters", "memory.shard_over=2"},
      untied{"model.tied_embeddings=false"}, everywhere{"model.tied_embeddings=false", "parallel.embedding=replicated"},
      vocabulary{"pipeline.vocab_parallel=true"};
  std::vector<Case> const all{{1, 2, 1, "1f1b", {none, full, list, norm, groups, sums, some, disk, untied, everywhere}},
                              {1, 3, 1, "gpipe", {none, full, norm}},
                              {1, 4, 1, "1f1b", {sums}},
                              {1, 2, 2, "1f1b", {full}},
                              {1, 2, 2, "zb_h1", {none, norm, groups, sums, disk, untied, everywhere}},
                              {1, 2, 2, "interleaved_1f1b", {list}},
                              {1, 2, 2, "zb_v", {full, list}},
                              {1, 2, 2, "zb_v", {vocabulary}},
                              {2, 2, 1, "1f1b", {none, gradients, parameters, each}},
                              {1, 3, 2, "zb_h1", {none, list}},
                              {1, 3, 2, "zb_h1", {vocabulary}},
                              {2, 3, 1, "1f1b", {optimizer, parameters}},
                              {3, 2, 1, "gpipe", {none}},
                              {2, 2, 2, "zb_v", {parameters, full}},
                              {2, 2, 2, "looped_bfs", {gradients}},
                              {1, 4, 2, "zb_h1", {none}},
                              {4, 2, 1, "1f1b", {hybrid}},
                              {2, 4, 1, "1f1b", {optimizer}}};
  std::vector<Case> out;
  for (auto const& c : all)
    if (c.dp * c.tp * c.pp == ranks) out.push_back(c);
  return out;
}

Keys joined(Keys a, Keys const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The keys that change the model.
Keys of_model(Keys const& all) {
  Keys out;
  for (auto const& k : all)
    if (k.starts_with("model.") || k.starts_with("batch.")) out.push_back(k);
  return out;
}

/// Recomputation and sharding change no bit.
bool keeps_bits(Keys const& setting) {
  return std::none_of(setting.begin(), setting.end(),
                      [](std::string const& k) { return k.starts_with("model.") || k.starts_with("memory.reduce="); });
}

template <class P>
void same_numbers(char const* precision, double tolerance, std::size_t every) {
  auto world = comm::Communicator::world();
  std::size_t ran = 0, turn = 0;
  double worst = 0.0;
  for (bool const llama : {false, true}) {
    Keys known;
    Outcome expected;
    for (auto const& c : cases(world.size())) {
      Outcome first;
      for (auto const& setting : c.settings) {
        if (llama && setting != c.settings.back()) continue;
        if (turn++ % every != 0) continue;
        auto model = joined(of_model(setting), {std::string("run.precision=") + precision});
        if (llama) model.push_back(fmt::format("model.kv_heads={}", c.tp == 4 ? 4 : 6));
        if (model != known) expected = train_alone<P>(make_config(llama, 1, model), world);
        known = model;
        SCOPED_TRACE(fmt::format("dp{} tp{} pp{} {} {} {}", c.dp, c.tp, c.pp, c.schedule, llama ? "llama" : "gpt2",
                                 fmt::join(setting, ", ")));
        auto const keys = joined(joined(layout_keys(c), setting), model);
        auto const found = train<P>(make_config(llama, world.size(), keys), world);
        worst = std::max(worst, expect_close(found, expected, tolerance));
        ++ran;
        if (!keeps_bits(setting)) continue;
        if (first.names.empty()) first = found;
        EXPECT_TRUE(found.numbers == first.numbers)
            << "every bit of " << fmt::format("{}", fmt::join(c.settings[0], ", "));
      }
    }
  }
  if (world.rank() == 0) fmt::print("{} runs, the largest relative difference is {:.1e}\n", ran, worst);
  EXPECT_GE(ran, 1u);
}

TEST(Sequence, NumbersAreThoseOfOneRank) { same_numbers<device::Fp64>("fp64", 1e-12, 1); }
TEST(Sequence, NumbersAreThoseOfOneRankInFp32) {
  if (comm::Communicator::world().size() <= 3) same_numbers<device::Fp32>("fp32", 2e-4, 3);
}

// By default shared memory sums.
TEST(Sequence, EveryWayToSum) {
  auto world = comm::Communicator::world();
  if (world.size() > 3) return;
  auto const tp = fmt::format("parallel.tp={}", world.size());
  auto const expected = train_alone<device::Fp64>(make_config(false, 1, {}), world);
  for (char const* way : {"mpi", "ring", "tree"}) {
    SCOPED_TRACE(way);
    Keys const keys{tp, "parallel.sequence=true", std::string("comm.allreduce=") + way, "run.deterministic=false"};
    expect_close(train<device::Fp64>(make_config(false, world.size(), keys), world), expected, 1e-12);
  }
}

/// Trains with sequences of 131 tokens, which are more than one block of a GEMM's rows, and compares all bits.
template <class P>
void same_bits_with_overlap(Keys const& keys) {
  auto world = comm::Communicator::world();
  SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
  Keys layout{fmt::format("parallel.tp={}", world.size())};
  if (world.size() == 4) layout = {"parallel.tp=2", "parallel.pp=2", "pipeline.schedule=zb_h1"};
  auto const outcome = [&](char const* overlap) {
    Keys const own{"parallel.sequence=true", "model.seq_len=131", "model.layers=2", "batch.global=4",
                   std::string("comm.overlap_tp=") + overlap};
    return train<P>(make_config(false, world.size(), joined(joined(layout, keys), own)), world);
  };
  auto const expected = outcome("none");
  for (auto const* overlap : {"bulk", "chunks", "microbatch", "auto"})
    EXPECT_TRUE(outcome(overlap).numbers == expected.numbers) << overlap;
}

TEST(Sequence, OverlapOfTpChangesNoBit) {
  if (comm::Communicator::world().size() > 4) return;
  if (!device::on_host()) GTEST_SKIP() << "libraries of GPUs choose among algorithms by the number of rows";
  if (p3d::test::has_avx512()) GTEST_SKIP() << "rows of GEMMs were not looked at with AVX-512";
  same_bits_with_overlap<device::Fp64>({});
  same_bits_with_overlap<device::Fp32>({"run.precision=fp32"});
  for (char const* queries : {"model.mla.q_lora_rank=0", "model.mla.q_lora_rank=3"}) {
    same_bits_with_overlap<device::Fp64>({"model.position=rope", "model.bias=false", "model.qkv_bias=false",
                                          "model.mla.kv_lora_rank=4", "model.mla.qk_nope_head_dim=3",
                                          "model.mla.qk_rope_head_dim=2", "model.mla.v_head_dim=5", queries});
  }
}

#if P3D_16BIT
/// Losses alone: rounding to 16 bits moves single gradients far.
template <class P>
void close_losses(Keys const& keys) {
  auto world = comm::Communicator::world();
  if (world.size() > 4) return;
  auto const expected = train_alone<device::Fp64>(make_config(false, 1, {"run.precision=fp64"}), world);
  Keys layout{"parallel.sequence=true", fmt::format("parallel.tp={}", world.size())};
  if (world.size() == 4)
    layout = {"parallel.sequence=true", "parallel.tp=2", "parallel.pp=2", "pipeline.schedule=zb_h1"};
  Outcome first;
  for (auto const* recompute : {"memory.recompute=none", "memory.recompute=full", "memory.recompute=[\"norm\"]"}) {
    SCOPED_TRACE(fmt::format("{} {}", fmt::join(keys, " "), recompute));
    auto const found = train<P>(make_config(false, world.size(), joined(joined(layout, keys), {recompute})), world);
    for (std::size_t s = 0; s < steps; ++s) EXPECT_NEAR(found.numbers[0][s], expected.numbers[0][s], 0.03);
    if (first.names.empty()) first = found;
    EXPECT_TRUE(found.numbers == first.numbers) << "recomputation changes no bit";
  }
}

TEST(Sequence, LossesIn16Bits) {
  close_losses<device::Bf16>({"run.precision=bf16"});
  close_losses<device::Bf16>({"run.precision=bf16", "precision.stochastic_rounding=true"});
  close_losses<device::Fp16>({"run.precision=fp16", "precision.loss_scale=128"});
  close_losses<device::Fp32>({"run.precision=fp32", "precision.pipeline=bf16"});
}
#endif

using Sent = comm::Communicator::Sent;

/// What all ranks together send along an axis in a step after the first.
Sent sent_in_a_step(config::Config const& config, comm::Communicator& world, char const* axis) {
  engine::Trainer<device::Fp64> trainer(config, world);
  trainer.step();
  auto& group = trainer.mesh().along({axis});
  auto const before = group.accounting().sent;
  trainer.step();
  auto const after = group.accounting().sent;
  std::array<std::int64_t, 4> sums{after.all_reduce - before.all_reduce, after.reduce_scatter - before.reduce_scatter,
                                   after.all_gather - before.all_gather, after.messages - before.messages};
  world.all_reduce(sums.data(), 4, comm::Type::int64, comm::Reduction::sum).wait();
  return {.all_reduce = sums[0], .reduce_scatter = sums[1], .all_gather = sums[2], .messages = sums[3]};
}

/// What the plan says, of all ranks along an axis that is not pp, without gradients of weights.
Sent predicted(config::Config const& config) {
  auto const plan = engine::make_run_plan(config);
  plan::TensorTraffic sum;
  for (int r = 0; r < config.parallel.pp; ++r) {
    auto const t = plan::tensor_traffic(config, plan.stages, plan.activations, plan.training, r);
    sum.all_reduce += t.all_reduce;
    sum.reduce_scatter += t.reduce_scatter;
    sum.all_gather += t.all_gather;
  }
  auto const integer = [](double x) { return static_cast<std::int64_t>(x); };
  return {.all_reduce = integer(sum.all_reduce),
          .reduce_scatter = integer(sum.reduce_scatter),
          .all_gather = integer(sum.all_gather)};
}

/// Bytes of the gradients that tp sums: of buckets that one rank of every stage and replica has.
std::int64_t gradients_over_tp(config::Config const& c) {
  auto const plan = engine::make_run_plan(c);
  std::int64_t bytes = 0;
  for (int s = 0; s < plan.stages.num_stages(); ++s) {
    layout::StageParams const params(plan.table, plan.stages, s, plan.grid.sizes(),
                                     layout::PerAxis::only(layout::Axis::pp, plan.stages.pipeline_rank(s)));
    for (auto const& b : layout::make_buckets(params, plan::bucket_rule(c)))
      if (b.axes.has(layout::Axis::tp)) bytes += 8 * b.size();
  }
  return bytes;
}

// arXiv 2205.05198, section 4.2.2, for each layer and microbatch: 2 all-gathers and 2 reduce-scatters forward, as many
// backward, and 2 all-gathers more, of the inputs that are kept in parts. A gather or a scatter of n bytes over t ranks
// sends (t - 1) n, an all-reduce twice that. Outside of layers: the embedding's sum and its gradient, the head's input
// (twice) and its gradient; and 3 numbers a token for the loss.
TEST(Sequence, BytesAreThoseOfTheTable) {
  auto world = comm::Communicator::world();
  int const t = world.size();
  if (t > 4) return;
  constexpr std::int64_t layers = 4, microbatches = 6, tokens = 7, n = tokens * 24 * 8, loss = tokens * 3 * 8;
  auto const tp = fmt::format("parallel.tp={}", t);
  auto const sent = [&](Keys more) {
    more.push_back(tp);
    auto const config = make_config(false, t, more);
    auto const found = sent_in_a_step(config, world, "tp");
    auto plan = predicted(config);
    plan.all_reduce += 2 * (t - 1) * gradients_over_tp(config);
    EXPECT_EQ(plan, found);
    return found;
  };
  auto const expected = [&](std::int64_t sums, std::int64_t scatters, std::int64_t gathers, std::int64_t gradients) {
    return Sent{.all_reduce = 2 * (t - 1) * (microbatches * (sums * n + loss) + gradients),
                .reduce_scatter = (t - 1) * microbatches * scatters * n,
                .all_gather = (t - 1) * microbatches * gathers * n};
  };
  EXPECT_EQ(sent({}), expected(4 * layers + 2, 0, 0, 0));
  // An embedding on every rank of tp has no sum, and no gather of its gradient.
  std::string const on = "parallel.sequence=true";
  Keys const everywhere{"parallel.embedding=replicated", "model.tied_embeddings=false"};
  EXPECT_EQ(sent(everywhere), expected(4 * layers + 1, 0, 0, 0));
  auto const looked_up = gradients_over_tp(make_config(false, t, joined({tp, on}, everywhere)));
  EXPECT_GE(looked_up, 8 * 256 * 24);
  EXPECT_EQ(sent(joined({on}, everywhere)), expected(0, 4 * layers + 1, 6 * layers + 2, looked_up));
  // A norm of all heads: 2 numbers a token in both passes, and once more where a layer is recomputed. A norm of each
  // head: the gradients of its weights.
  auto const with = [&](std::int64_t sums, std::int64_t norms, std::int64_t weights) {
    auto out = expected(sums, 0, 0, weights);
    out.all_reduce += 2 * (t - 1) * microbatches * layers * norms * 2 * tokens * 8;
    return out;
  };
  EXPECT_EQ(sent({"model.qk_norm=full"}), with(4 * layers + 2, 2, 0));
  EXPECT_EQ(sent({"model.qk_norm=full", "memory.recompute=full"}), with(5 * layers + 2, 3, 0));
  auto const head = gradients_over_tp(make_config(false, t, {tp, "model.qk_norm=head"}));
  EXPECT_GE(head, 8 * layers * 2 * 2);
  EXPECT_EQ(sent({"model.qk_norm=head"}), with(4 * layers + 2, 0, head));
  // Norms behind the sub-layers need the branch of the MLP where a layer is recomputed, unless it was kept.
  std::string const behind = "model.norm_placement=post";
  EXPECT_EQ(sent({behind, "memory.recompute=full"}), expected(6 * layers + 2, 0, 0, 0));
  EXPECT_EQ(sent({behind, "memory.recompute=full", "memory.recompute_communication=false"}),
            expected(4 * layers + 2, 0, 0, 0));
  auto const gradients = gradients_over_tp(make_config(false, t, {tp, on}));
  // Norms, the biases behind row-parallel matrices, positions.
  EXPECT_GE(gradients, 8 * (layers * 6 * 24 + 2 * 24 + 7 * 24));
  auto const scatters = 4 * layers + 2, gathers = 6 * layers + 3;
  EXPECT_EQ(sent({on}), expected(0, scatters, gathers, gradients));
  EXPECT_EQ(sent({on, "memory.recompute=[\"norm\", \"activation\", \"attention\"]"}),
            expected(0, scatters, gathers, gradients));
  EXPECT_EQ(sent({on, "memory.recompute=full"}), expected(0, scatters + layers, gathers + 2 * layers, gradients));
  EXPECT_EQ(sent({on, "memory.recompute=full", "memory.recompute_communication=false"}),
            expected(0, scatters, gathers + 2 * layers, gradients));
  // Groups of 2 layers: inside, a layer's output is made again too. Inputs in equal parts are gathered once.
  EXPECT_EQ(sent({on, "memory.recompute=full", "memory.recompute_group=2"}),
            expected(0, scatters + layers / 2 * 3, gathers + 2 * layers, gradients));
  EXPECT_EQ(sent({"model.seq_len=12", "memory.recompute=full", "memory.share_saved_inputs=true"}).all_gather,
            (t - 1) * microbatches * (layers - 1) * 12 * 24 * 8);
}

// Latent attention exchanges latents (of 4 + 2 numbers, and 3 where queries have one) in place of its input: their sum
// in backward, and with parallel.sequence their gathers in forward and for weights. Queries without a latent keep the
// exchanges of the input besides.
TEST(Sequence, LatentAttentionExchangesLatents) {
  auto world = comm::Communicator::world();
  int const t = world.size();
  if (t > 4) return;
  constexpr std::int64_t layers = 4, microbatches = 6, tokens = 7, n = tokens * 24 * 8, loss = tokens * 3 * 8;
  auto const tp = fmt::format("parallel.tp={}", t);
  Keys const latent{tp,
                    "model.heads=12",
                    "model.kv_heads=12",
                    "model.position=rope",
                    "model.bias=false",
                    "model.qkv_bias=false",
                    "model.mla.kv_lora_rank=4",
                    "model.mla.qk_nope_head_dim=3",
                    "model.mla.qk_rope_head_dim=2",
                    "model.mla.v_head_dim=5"};
  for (std::int64_t const queries : {0, 3}) {
    std::int64_t const row = tokens * (6 + queries) * 8, inputs = queries > 0 ? 0 : 1;
    auto const check = [&](Keys const& more, std::int64_t sums, std::int64_t latent_sums, std::int64_t gathers,
                           std::int64_t latent_gathers) {
      auto keys = latent;
      keys.push_back(fmt::format("model.mla.q_lora_rank={}", queries));
      keys.insert(keys.end(), more.begin(), more.end());
      auto const config = make_config(false, t, keys);
      auto const found = sent_in_a_step(config, world, "tp");
      auto const gradients = gradients_over_tp(config);
      auto plan = predicted(config);
      plan.all_reduce += 2 * (t - 1) * gradients;
      EXPECT_EQ(plan, found);
      auto const each = (t - 1) * microbatches;
      auto const bytes = each * (sums * n + latent_sums * row), rest = each * loss + (t - 1) * gradients;
      EXPECT_EQ(found, (config.parallel.sequence ? Sent{.all_reduce = 2 * rest,
                                                        .reduce_scatter = bytes,
                                                        .all_gather = each * (gathers * n + latent_gathers * row)}
                                                 : Sent{.all_reduce = 2 * (bytes + rest)}));
    };
    auto const sums = (3 + inputs) * layers + 2, gathers = (4 + 2 * inputs) * layers + 3;
    check({}, sums, layers, 0, 0);
    check({"memory.recompute=full"}, sums + layers, layers, 0, 0);
    if (t == 1) continue;
    check({"parallel.sequence=true"}, sums, layers, gathers, 2 * layers);
    check({"parallel.sequence=true", "memory.recompute=full"}, sums + layers, layers, gathers + (1 + inputs) * layers,
          3 * layers);
  }
}

/// What the plan says that all ranks send for attention over cp in a step.
double predicted_over_context(config::Config const& config) {
  auto const plan = engine::make_run_plan(config);
  double sum = 0;
  for (int r = 0; r < config.parallel.pp; ++r)
    sum += plan::context_traffic_per_step(config, plan.stages, plan.activations, plan.training, r);
  return sum * config.parallel.cp * config.parallel.tp;
}

// Over cp latents travel where they are fewer bytes, else keys and values: bytes, and memory, are those of the plan,
// with recomputation and split backwards. With parallel.sequence a split backward gathers latents in its input part,
// and in its weight part if queries have a latent.
TEST(Sequence, LatentsOverContextAreThoseOfThePlan) {
  auto world = comm::Communicator::world();
  int const ranks = world.size();
  std::vector<Keys> layouts;
  auto const layout = [&](int cp, int tp, int pp) {
    if (cp * tp * pp != ranks) return;
    layouts.push_back({fmt::format("parallel.cp={}", cp), fmt::format("parallel.tp={}", tp),
                       fmt::format("parallel.pp={}", pp), pp > 1 ? "pipeline.schedule=zb_h1" : "pipeline.schedule=1f1b",
                       tp > 1 ? "parallel.sequence=true" : "parallel.sequence=false"});
  };
  layout(2, 1, 1), layout(4, 1, 1), layout(2, 2, 1), layout(2, 1, 2), layout(2, 2, 2);
  Keys const wide{"model.mla.kv_lora_rank=200"}, plain{"model.mla.kv_lora_rank=4"},
      queries{"model.mla.kv_lora_rank=4", "model.mla.q_lora_rank=3"},
      full{"model.mla.kv_lora_rank=4", "model.mla.q_lora_rank=3", "memory.recompute=full"},
      attention{"model.mla.kv_lora_rank=4", "memory.recompute=[\"attention\"]"};
  auto const check = [&](Keys const& of_ranks, char const* exchange, Keys const& setting) {
    auto const keys = joined(joined(of_ranks, setting),
                             {std::string("context.exchange=") + exchange, "model.seq_len=24", "model.position=rope",
                              "model.bias=false", "model.qkv_bias=false", "model.mla.qk_nope_head_dim=3",
                              "model.mla.qk_rope_head_dim=2", "model.mla.v_head_dim=5"});
    SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
    auto const config = make_config(false, ranks, keys);
    EXPECT_EQ(layout::context_division(config).latents, setting != wide);
    engine::Trainer<device::Fp64> trainer(config, world);
    auto& tp = trainer.mesh().along({"tp"});
    trainer.step();
    auto const first = trainer.inspection().context_bytes();
    auto const before = tp.accounting().sent;
    trainer.step();
    auto const after = tp.accounting().sent;
    std::array<std::int64_t, 3> sent{trainer.inspection().context_bytes() - first,
                                     after.reduce_scatter - before.reduce_scatter,
                                     after.all_gather - before.all_gather};
    world.all_reduce(sent.data(), 3, comm::Type::int64, comm::Reduction::sum).wait();
    EXPECT_EQ(static_cast<double>(sent[0]), predicted_over_context(config));
    auto const plan = predicted(config);
    EXPECT_EQ(sent[1], config.parallel.cp * plan.reduce_scatter);
    EXPECT_EQ(sent[2], config.parallel.cp * plan.all_gather);
    test::expect_memory(trainer.memory_in_use(), trainer.plan().memory_of(trainer.mesh().coordinate("pp")));
    EXPECT_EQ(trainer.inspection().activation_high_water(), trainer.inspection().activation_capacity());
  };
  for (auto const& of_ranks : layouts) {
    for (auto const& setting : {wide, plain, queries, full, attention}) check(of_ranks, "ring", setting);
    for (auto const& setting : {wide, full}) check(of_ranks, "gather", setting);
    for (auto const& setting : {wide, plain, attention}) check(of_ranks, "all_to_all", setting);
    if (of_ranks.front() == "parallel.cp=4")
      for (auto const& setting : {queries, attention}) check(of_ranks, "[2, 2]", setting);
  }
}

// The weight part of a split backward gathers the gradients of the two row-parallel outputs once more. Between stages
// every token travels once, not on every rank of tp.
TEST(Sequence, BytesOfPipelines) {
  auto world = comm::Communicator::world();
  if (world.size() != 4) return;
  constexpr std::int64_t layers = 4, microbatches = 6, n = 7 * 24 * 8;
  Keys const keys{"parallel.tp=2", "parallel.pp=2", "pipeline.schedule=zb_h1"};
  auto const on = make_config(false, 4, joined(keys, {"parallel.sequence=true"})), off = make_config(false, 4, keys);
  auto const sent = sent_in_a_step(on, world, "tp");
  EXPECT_EQ(sent.reduce_scatter, predicted(on).reduce_scatter);
  EXPECT_EQ(sent.all_gather, predicted(on).all_gather);
  EXPECT_EQ(sent.reduce_scatter, microbatches * (4 * layers + 2) * n);
  EXPECT_EQ(sent.all_gather, microbatches * (8 * layers + 3) * n);
  // Each rank of pp does its part of the embedding and of the head, with the sums and gathers of both.
  auto const divided = make_config(false, 4, joined(keys, {"parallel.sequence=true", "pipeline.vocab_parallel=true"}));
  auto const parts = sent_in_a_step(divided, world, "tp");
  EXPECT_EQ(parts.reduce_scatter, predicted(divided).reduce_scatter);
  EXPECT_EQ(parts.all_gather, predicted(divided).all_gather);
  EXPECT_EQ(parts.reduce_scatter, microbatches * (4 * layers + 2 * 2) * n);
  EXPECT_EQ(parts.all_gather, microbatches * (8 * layers + 2 * 3) * n);
  EXPECT_EQ(sent_in_a_step(on, world, "pp").messages, microbatches * 2 * n);
  EXPECT_EQ(sent_in_a_step(off, world, "pp").messages, 2 * microbatches * 2 * n);
}

// Measured against predicted memory, by purpose; and what sequence parallelism saves.
TEST(Sequence, MemoryIsWhatWasPredicted) {
  auto world = comm::Communicator::world();
  for (auto const& c : cases(world.size())) {
    for (auto const& setting : c.settings) {
      if (world.size() > 3 && setting != c.settings.front() && setting != c.settings.back()) continue;
      auto const keys = joined(joined(layout_keys(c), setting), {"model.hidden=96", "model.ffn=384"});
      SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
      auto const config = make_config(false, world.size(), keys);
      engine::Trainer<device::Fp64> trainer(config, world);
      trainer.step();
      auto const rank = trainer.mesh().coordinate("pp");
      auto const expected = trainer.plan().memory_of(rank);
      test::expect_memory(trainer.memory_in_use(), expected);
      auto without = config;
      without.parallel.sequence = false;
      auto const whole = engine::make_run_plan(without).memory_of(rank);
      EXPECT_LT(trainer.memory_in_use().activations, whole.activations);
      EXPECT_LE(expected.workspace, whole.workspace);
    }
  }
}

}  // namespace
