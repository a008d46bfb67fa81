// SPDX-License-Identifier: Apache-2.0
// Models with experts against Hugging Face transformers (make_experts.py) in fp64: losses of four batches and the
// gradients of all parameters, on whatever layouts this number of ranks allows.

#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Trainer = p3d::engine::Trainer<p3d::device::Fp64>;
using Words = std::vector<std::string>;
using Numbers = std::vector<double>;

struct Expected {
  struct Step {
    double loss = 0, norm = 0;
  };
  std::vector<Step> steps;
  std::map<std::string, Numbers> weights, gradients;  ///< by p3d's names
};

/// Element i: middle + width (u - 1/2), u from splitmix64 (Steele, Lea, Flood, OOPSLA 2014) of FNV-1a(name) + i.
Numbers make_weights(std::string const& name, std::size_t size, double middle, double width) {
  std::uint64_t first = 0xcbf29ce484222325;
  for (unsigned char c : name) first = (first ^ c) * 0x100000001b3;
  Numbers out;
  for (std::size_t i = 0; i < size; ++i) {
    std::uint64_t z = first + i + 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    out.push_back(middle + width * (static_cast<double>(z >> 11) * 0x1p-53 - 0.5));
  }
  return out;
}

Expected read_expected(std::string const& name) {
  auto const path = fmt::format("{}/tests/golden/experts/{}.", P3D_SOURCE_DIR, name);
  Expected out;
  std::ifstream text(path + "reference.txt"), binary(path + "gradients.bin", std::ios::binary);
  for (std::string line, word; std::getline(text, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "step") {
      auto& s = out.steps.emplace_back();
      words >> word >> s.loss >> s.norm;
    } else if (word == "parameter") {
      std::string parameter, kind;
      std::size_t rows = 0, cols = 0;
      double middle = 0, width = 0;
      words >> parameter >> rows >> cols >> middle >> width >> kind;
      out.weights[parameter] = make_weights(parameter, rows * cols, middle, width);
      if (kind != "trained") continue;
      auto& gradient = out.gradients[parameter];
      gradient.resize(rows * cols);
      binary.read(reinterpret_cast<char*>(gradient.data()),
                  static_cast<std::streamsize>(gradient.size() * sizeof(double)));
    }
    EXPECT_FALSE(words.fail()) << line;
  }
  EXPECT_TRUE(binary.good() && binary.peek() == std::ifstream::traits_type::eof()) << path;
  return out;
}

void set_weights(Trainer& trainer, std::map<std::string, Numbers> const& weights) {
  for (auto const& part : trainer.checkpoint_parts({})) {
    auto const& all = weights.at(part.array.substr(part.array.rfind('/') + 1));
    Numbers block;
    for (auto r = part.row_begin; r < part.row_begin + part.rows; ++r)
      for (auto c = part.col_begin; c < part.col_begin + part.cols; ++c)
        block.push_back(all.at(static_cast<std::size_t>(r * part.global_cols + c)));
    part.copy_in(0, part.rows * part.cols, block.data());
  }
}

p3d::config::Config make_config(std::string const& name, Words const& layout, int ranks) {
  Words const words{
      "model.preset=llama-tiny", "model.vocab_size=256", "model.hidden=16", "model.heads=4", "model.kv_heads=2",
      "model.seq_len=32",        "model.norm_eps=1e-5",  "run.seed=77",     "run.steps=6",   "run.precision=fp64",
      "run.eval_batches=0",      "batch.global=4",       "data.split=0.1",
      "optimizer.lr=0",  // the weights stay
      p3d::test::licence_text()};
  Words const mixtral{"model.layers=2", "model.ffn=12", "model.tied_embeddings=true", "model.moe.experts=4",
                      "model.moe.top_k=2"};
  Words const deepseek{"model.layers=3",
                       "model.ffn=24",
                       "model.tied_embeddings=false",
                       "model.moe.experts=8",
                       "model.moe.top_k=3",
                       "model.moe.ffn=8",
                       "model.moe.shared_ffn=16",
                       "model.moe.first_dense=1",
                       "model.moe.score=sigmoid",
                       "model.moe.groups=4",
                       "model.moe.group_top_k=2",
                       "model.moe.scale=2.5",
                       "model.moe.bias_update_rate=0.05"};
  return p3d::test::config_of(p3d::test::joined({words, name == "mixtral" ? mixtral : deepseek, layout}), ranks);
}

std::vector<Words> layouts(int ranks) {
  if (ranks == 1) return {{"batch.micro=4"}, {"batch.micro=1", "memory.recompute=full"}};
  if (ranks == 2)
    return {{"parallel.dp=2", "parallel.ep=2"},
            {"parallel.tp=2", "parallel.sequence=true", "batch.micro=2", "parallel.etp=2"},
            {"parallel.tp=2", "parallel.sequence=true", "parallel.ep=2"},
            {"parallel.pp=2"},
            {"parallel.dp=2", "parallel.etp=2", "memory.shard=parameters"}};
  return {
      {"parallel.tp=2", "parallel.sequence=true", "batch.micro=2", "parallel.dp=2", "parallel.etp=2", "parallel.ep=2"},
      {"parallel.pp=2", "parallel.dp=2", "parallel.ep=2", "memory.recompute=full"},
      {"parallel.pp=2", "parallel.tp=2", "parallel.sequence=true", "parallel.etp=2"},
      {"parallel.dp=4", "parallel.ep=4", "memory.shard=parameters"}};
}

/// The largest difference, over the largest element.
double deviation(Numbers const& ours, Numbers const& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    double const off = std::fabs(ours.at(i) - theirs[i]);
    most = off <= most ? most : off;  // takes NaN
    largest = std::max(largest, std::fabs(theirs[i]));
  }
  return most / largest;
}

struct Deviations {
  double loss = 0, norm = 0, gradient = 0;
};

Deviations compare(p3d::config::Config const& config, p3d::comm::Communicator const& comm, Expected const& expected) {
  Trainer trainer(config, comm);
  EXPECT_EQ(trainer.plan().table.specs().size(), expected.weights.size());
  set_weights(trainer, expected.weights);
  Deviations out;
  auto const grow = [](double& most, double off) { most = off <= most ? most : off; };  // takes NaN
  for (std::size_t s = 0; s < expected.steps.size(); ++s) {
    trainer.inspection().keep_gradients(s == 0);
    auto const got = trainer.step();
    grow(out.loss, std::fabs(got.loss / expected.steps[s].loss - 1.0));
    grow(out.norm, std::fabs(got.grad_norm / expected.steps[s].norm - 1.0));
    if (s > 0) continue;
    for (auto const& [name, theirs] : expected.gradients) {
      double const off = deviation(trainer.inspection().gather_gradient(name), theirs);
      EXPECT_TRUE(off <= 1e-12 || out.loss > 1e-12) << name << ": " << off;  // which, where the loss is right
      grow(out.gradient, off);
    }
  }
  return out;
}

class ModelsWithExperts : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelsWithExperts, LossesAndGradientsAgree) {
  auto const expected = read_expected(GetParam());
  ASSERT_EQ(expected.steps.size(), 4u);
  auto world = p3d::comm::Communicator::world();
  for (auto const& layout : layouts(world.size())) {
    auto const off = compare(make_config(GetParam(), layout, world.size()), world, expected);
    auto const text =
        fmt::format("{} {}: losses agree to {:.1e}, norms of gradients to {:.1e}, all {} to {:.1e}\n", GetParam(),
                    fmt::join(layout, " "), off.loss, off.norm, expected.gradients.size(), off.gradient);
    EXPECT_LE(off.loss, 1e-12) << text;
    EXPECT_LE(off.norm, 1e-12) << text;
    EXPECT_LE(off.gradient, 1e-12) << text;
    if (world.rank() == 0) fmt::print("{}", text);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ModelsWithExperts, ::testing::Values("mixtral", "deepseek"),
                         [](auto const& info) { return info.param; });

TEST(Router, EveryRuleCounts) {
  auto const expected = read_expected("deepseek");
  for (std::string const rule :
       {"score=softmax", "normalize=false", "scale=2.500001", "group_top_k=3", "top_k=2", "bias_update_rate=0.1"}) {
    auto const config = make_config("deepseek", {"model.moe." + rule}, 1);
    EXPECT_GT(compare(config, p3d::comm::Communicator::self(), expected).loss, 1e-9) << rule;
  }
}

}  // namespace
