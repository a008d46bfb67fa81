// SPDX-License-Identifier: Apache-2.0
// Texts drawn with kept keys and values: those that the model gives when it reads everything again for each token, on
// every layout, in every batch.

#include <p3d/base/error.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/errors.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Policy = device::Fp64;
using Texts = std::vector<std::vector<int>>;

constexpr std::int64_t window = 12, vocabulary = 61;

config::Config make_config(bool llama, std::vector<std::string> const& more, int ranks) {
  return test::config_of(
      test::joined(
          {test::family(llama),
           {"model.heads=4", llama ? "model.kv_heads=2" : "model.kv_heads=4", "model.hidden=32", "model.ffn=48",
            fmt::format("model.vocab_size={}", vocabulary), fmt::format("model.seq_len={}", window), "model.layers=4",
            "model.dropout=0.1", "data.format=synthetic", "batch.micro=1", "batch.global=12", "run.precision=fp64",
            "optimizer.lr=3e-2", llama ? "model.attention_softcap=0.5" : "model.attention_softcap=0",
            llama ? "model.logits_softcap=4" : "model.logits_softcap=0"},
           more}),
      ranks);
}

Texts const prompts{{3, 1, 4}, {1}, {5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4}, {60, 0}, {7, 7, 7, 7, 7, 7}};

engine::SampleOptions options(std::int64_t tokens, double temperature) {
  engine::SampleOptions o;
  o.tokens = tokens;
  o.temperature = temperature;
  o.seed = 11;
  return o;
}

/// Each token from a reading of the whole window, which no cache is used in.
std::vector<int> reading_again(engine::Trainer<Policy>& trainer, std::vector<int> text, std::int64_t tokens) {
  std::vector<int> out;
  std::size_t begin = std::max<std::size_t>(text.size(), window) - window;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (text.size() - begin > window) begin = text.size() - window / 2;
    std::vector<int> const read(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end());
    auto const next = trainer.sample({read}, options(1, 0.0)).front().front();
    text.push_back(next);
    out.push_back(next);
  }
  return out;
}

class Sample : public ::testing::TestWithParam<bool> {};

TEST_P(Sample, IsWhatTheModelSaysWhenItReadsAllAgain) {
  auto world = comm::Communicator::world();
  auto const dp = fmt::format("parallel.dp={}", world.size());
  engine::Trainer<Policy> trainer(make_config(GetParam(), {dp}, world.size()), world);
  for (int s = 0; s < 5; ++s) trainer.step();
  for (auto const& prompt : prompts)  // past the window too, where the older half is forgotten
    EXPECT_EQ(trainer.sample({prompt}, options(20, 0.0)).front(), reading_again(trainer, prompt, 20));
}

TEST_P(Sample, IsTheSameOnEveryLayoutAndInEveryBatch) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  std::vector<std::vector<std::string>> layouts{
      {fmt::format("parallel.dp={}", n)},
      {fmt::format("parallel.dp={}", n), "memory.shard=" + std::string(n > 1 ? "parameters" : "none")},
      {fmt::format("parallel.dp={}", n), "memory.offload_parameters=disk"}};
  for (char const* shard : {"optimizer", "gradients"}) {
    if (n > 1) layouts.push_back({fmt::format("parallel.dp={}", n), fmt::format("memory.shard={}", shard)});
  }
  if (n <= 2) layouts.push_back({fmt::format("parallel.tp={}", n), n > 1 ? "parallel.sequence=true" : "run.seed=1"});
  if (n <= 4) layouts.push_back({fmt::format("parallel.pp={}", n)});
  for (auto const* schedule : {"1f1b", "zb_v"})
    if (n > 1 && n <= 4 && (n != 3 || schedule[0] == '1'))
      layouts.push_back({fmt::format("parallel.pp={}", n == 4 ? 2 : n), fmt::format("parallel.tp={}", n == 4 ? 2 : 1),
                         "pipeline.vocab_parallel=true", fmt::format("pipeline.schedule={}", schedule)});
  if (n == 4) layouts.push_back({"parallel.tp=2", "parallel.pp=2", "pipeline.schedule=zb_v"});
  if (n == 2) layouts.push_back({"parallel.pp=2", "pipeline.schedule=interleaved_1f1b"});
  bool const tied = !GetParam();
  if (!tied && (n == 2 || n == 4))
    layouts.push_back({"parallel.tp=2", fmt::format("parallel.pp={}", n / 2), "parallel.embedding=replicated"});
  Texts expected;
  std::vector<double> probabilities;
  for (auto const& layout : layouts) {
    SCOPED_TRACE(fmt::format("{}", layout.front()));
    engine::Trainer<Policy> trainer(make_config(GetParam(), layout, n), world);
    for (int s = 0; s < 5; ++s) trainer.step();
    // One text, which has no part for most replicas, right after a step.
    auto const first = trainer.sample({prompts.front()}, options(20, 0.9)).front();
    for (std::int64_t const batch : {1, 2, 16}) {
      auto o = options(20, 0.9);
      o.batch = batch;
      auto const found = trainer.sample(prompts, o);
      if (expected.empty()) expected = found;
      EXPECT_EQ(found, expected) << "batch " << batch;
      EXPECT_EQ(first, expected.front());
    }
  }
  ASSERT_EQ(expected.size(), prompts.size());
  EXPECT_NE(expected[0], expected[1]);
}

TEST_P(Sample, EndsWhereItIsTold) {
  auto world = comm::Communicator::world();
  engine::Trainer<Policy> trainer(make_config(GetParam(), {fmt::format("parallel.dp={}", world.size())}, world.size()),
                                  world);
  auto const whole = trainer.sample(prompts, options(20, 1.0));
  auto o = options(20, 1.0);
  o.stop_tokens = {whole[0][4], whole[3][0]};
  o.complete = [](std::size_t number, std::vector<int> const& drawn) { return number == 2 && drawn.size() == 3; };
  auto const found = trainer.sample(prompts, o);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    auto const stop = std::find_first_of(whole[i].begin(), whole[i].end(), o.stop_tokens.begin(), o.stop_tokens.end());
    std::vector<int> expected(whole[i].begin(), stop == whole[i].end() ? stop : stop + 1);
    if (i == 2) expected.resize(std::min<std::size_t>(3, expected.size()));
    EXPECT_EQ(found[i], expected);
  }
  EXPECT_EQ(found[3].size(), 1u);
  o = options(200, 1.5);
  o.vocabulary = 5;
  auto const few = trainer.sample({{3}}, o).front();
  EXPECT_LT(*std::max_element(few.begin(), few.end()), 5);
  o.top_k = 1;  // the likeliest, whatever the temperature
  auto greedy = options(200, 0.0);
  greedy.vocabulary = 5;
  EXPECT_EQ(trainer.sample({{3}}, o), trainer.sample({{3}}, greedy));
}

// All tokens are alike under a cap near 0: what is drawn does not depend on the prompt.
TEST(SampleCap, OfLogitsReachesTheDraw) {
  auto world = comm::Communicator::world();
  auto const dp = fmt::format("parallel.dp={}", world.size());
  auto const alike = [&](char const* cap) {
    engine::Trainer<Policy> trainer(make_config(true, {dp, std::string("model.logits_softcap=") + cap}, world.size()),
                                    world);
    for (int s = 0; s < 5; ++s) trainer.step();
    return trainer.sample({prompts[0]}, options(20, 0.9)) == trainer.sample({prompts[2]}, options(20, 0.9));
  };
  EXPECT_TRUE(alike("0.001"));
  EXPECT_FALSE(alike("0"));
}

TEST(SamplePrompt, OfTokensThatTheModelLacksIsRefused) {
  auto world = comm::Communicator::world();
  engine::Trainer<Policy> trainer(make_config(true, {fmt::format("parallel.dp={}", world.size())}, world.size()),
                                  world);
  test::expect_error([&] { trainer.sample({{3, 61}}, options(1, 0.0)); }, "tokens below model.vocab_size = 61");
  EXPECT_TRUE(trainer.sample({}, options(3, 0.0)).empty());
}

INSTANTIATE_TEST_SUITE_P(Models, Sample, ::testing::Bool(),
                         [](auto const& info) { return info.param ? "Llama" : "Gpt2"; });

}  // namespace
