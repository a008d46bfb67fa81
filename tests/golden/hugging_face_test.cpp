// SPDX-License-Identifier: Apache-2.0
// p3d with model.load against Hugging Face transformers (make_hugging_face.py): losses of single windows and of single
// tokens, and five steps of training, in fp64, on whatever layouts this number of ranks allows.

#include <p3d/config/parse.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/run/checkpoint.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Trainer = p3d::engine::Trainer<p3d::device::Fp64>;
using Overrides = std::vector<std::string>;

std::string const folder = std::string(P3D_SOURCE_DIR) + "/tests/golden/hugging_face/";

struct Expected {
  struct Score {
    std::int64_t length = 0, window = 0;
    double loss = 0;
  };
  struct Step {
    double lr = 0, loss = 0, norm = 0, mtp_loss = 0;
  };
  std::vector<Score> scores;
  std::vector<Step> steps;
};

Expected read_expected(std::string const& name) {
  Expected out;
  std::ifstream in(folder + name + ".reference.txt");
  for (std::string line, word; std::getline(in, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "score") {
      auto& s = out.scores.emplace_back();
      words >> s.length >> s.window >> s.loss;
    } else if (word == "step") {
      auto& s = out.steps.emplace_back();
      std::int64_t number = 0;
      words >> number >> s.lr >> s.loss >> s.norm;
      if (name.ends_with("_mtp")) words >> s.mtp_loss;
    }
    EXPECT_FALSE(words.fail()) << line;
  }
  return out;
}

/// The run that make_hugging_face.py repeats, with its weights loaded.
std::unique_ptr<Trainer> make(std::string const& name, std::int64_t seq_len, Overrides overrides,
                              p3d::comm::Communicator& world) {
  auto const text = fmt::format(
      "[run]\nseed = 77\nsteps = 6\nprecision = \"fp64\"\neval_batches = 0\n[model]\nload = \"{}{}\"\n[batch]\nglobal "
      "= 4\n[data]\npath = \"{}/LICENSE\"\nsplit = 0.1\n[optimizer]\nlr = 1e-3\nwarmup_steps = 2\nbeta1 = 0.9\nbeta2 = "
      "0.95\neps = 1e-8\nweight_decay = 0.1\ngrad_clip = 1.0\n",
      folder, name, P3D_SOURCE_DIR);
  overrides.push_back(fmt::format("model.seq_len={}", seq_len));
  // Evaluation is about the model alone.
  if (name.ends_with("_mtp") && seq_len < 3) overrides.emplace_back("model.mtp.depth=0");
  auto const input = p3d::config::parse_text(text, "hugging_face.toml", "/", overrides, world.size());
  EXPECT_TRUE(input.config) << p3d::config::format(input.errors);
  auto trainer = std::make_unique<Trainer>(input.config.value(), world);
  auto const start = p3d::run::resume(*trainer, {});
  EXPECT_EQ(start.step, 0);
  EXPECT_TRUE(start.origin.starts_with("weights ")) << start.origin;
  EXPECT_TRUE(start.origin.ends_with(" of " + folder + name)) << start.origin;
  return trainer;
}

std::vector<Overrides> layouts(int ranks, bool experts) {
  if (ranks == 1) return {{}};
  if (experts && ranks == 2)
    return {{"parallel.dp=2", "parallel.ep=2"},
            {"parallel.tp=2", "parallel.sequence=true", "batch.micro=2", "parallel.etp=2"},
            {"parallel.pp=2"},
            {"parallel.dp=2", "memory.shard=parameters"}};
  if (experts)
    return {{"parallel.tp=2", "parallel.sequence=true", "batch.micro=2", "parallel.dp=2", "parallel.etp=2",
             "parallel.ep=2"},
            {"parallel.pp=2", "parallel.dp=2", "parallel.ep=2", "memory.recompute=full"}};
  if (ranks == 2)
    return {{"parallel.tp=2"}, {"parallel.pp=2"}, {"parallel.dp=2"}, {"parallel.dp=2", "memory.shard=parameters"}};
  return {{"parallel.tp=2", "parallel.pp=2"}, {"parallel.tp=2", "parallel.dp=2", "memory.shard=parameters"}};
}

bool has_experts(std::string const& name) {
  return name == "mixtral" || name == "gpt_oss" || name.starts_with("deepseek") ||
         name.find("moe") != std::string::npos;
}

class HuggingFace : public ::testing::TestWithParam<std::string> {};

TEST_P(HuggingFace, LossesAgree) {
  auto const expected = read_expected(GetParam());
  ASSERT_EQ(expected.scores.size(), 40u);
  auto world = p3d::comm::Communicator::world();
  for (auto const& layout : layouts(world.size(), has_experts(GetParam()))) {
    double worst = 0.0;
    std::unique_ptr<Trainer> trainer;
    for (auto const& s : expected.scores) {
      if (!trainer || trainer->config().model.seq_len != s.length) {
        trainer.reset();
        trainer = make(GetParam(), s.length, layout, world);
      }
      auto const first = s.length * s.window;
      auto const loss = trainer->score({first, first + s.length + 1}).loss;
      worst = std::max(worst, std::fabs(loss / s.loss - 1.0));
    }
    EXPECT_LE(worst, 1e-10) << layout.size();
    if (world.rank() == 0) fmt::print("{}: losses of windows and tokens agree to {:.1e}\n", GetParam(), worst);
  }
}

TEST_P(HuggingFace, TrainingAgrees) {
  auto const expected = read_expected(GetParam());
  ASSERT_EQ(expected.steps.size(), 5u);
  auto world = p3d::comm::Communicator::world();
  for (auto const& layout : layouts(world.size(), has_experts(GetParam()))) {
    auto const trainer = make(GetParam(), 32, layout, world);
    double worst = 0.0;
    for (auto const& s : expected.steps) {
      auto const r = trainer->step();
      EXPECT_NEAR(r.lr, s.lr, 1e-15);
      EXPECT_NEAR(r.grad_norm / s.norm, 1.0, 1e-9);
      EXPECT_NEAR(r.mtp_loss, s.mtp_loss, 1e-9 * s.mtp_loss);
      worst = std::max(worst, std::fabs(r.loss / s.loss - 1.0));
    }
    EXPECT_LE(worst, 1e-9);
    if (world.rank() == 0) fmt::print("{}: losses of five steps agree to {:.1e}\n", GetParam(), worst);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, HuggingFace,
                         ::testing::Values("gpt2", "llama", "llama3", "mistral", "mistral_nemo", "ministral3",
                                           "mixtral", "qwen2", "qwen2_moe", "qwen2_moe_bias", "qwen3", "qwen3_moe",
                                           "olmo2", "olmo3", "olmoe", "granite", "glm4", "gemma2", "gemma3", "phi3",
                                           "yarn", "smollm3", "glm4_moe", "deepseek_v3", "deepseek_v3_plain",
                                           "deepseek_v3_mtp", "glm4_moe_mtp", "gpt_oss", "apertus", "phi3_long"),
                         [](auto const& info) { return info.param; });

}  // namespace
