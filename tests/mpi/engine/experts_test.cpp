// SPDX-License-Identifier: Apache-2.0
// Mixture-of-experts models in whole trainings: all experts alike are a dense layer, memory is what was predicted under
// the worst routing too, and texts are those of one rank on every layout.

#include <p3d/layout/experts.hpp>
#include <p3d/model/block.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/temp_dir.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using Policy = device::Fp64;
using Trainer = engine::Trainer<Policy>;
using Words = std::vector<std::string>;
using Numbers = std::vector<double>;

constexpr std::size_t hidden = 32, experts = 4;

config::Config make_config(Words const& more, int ranks) {
  Words const own{"model.preset=llama-tiny", "model.hidden=32",    "model.heads=4", "model.kv_heads=4",
                  "model.seq_len=16",        "model.layers=4",     "model.ffn=64",  "run.steps=12",
                  "run.eval_batches=0",      "run.precision=fp64", "batch.micro=1", "batch.global=8",
                  "optimizer.lr=1e-2"};
  return test::config_of(test::joined({own, more}), ranks);
}

/// Sets the named parameters, on every rank to the same.
void set_values(Trainer& trainer, std::map<std::string, Numbers> const& values) {
  for (auto const& part : trainer.checkpoint_parts({})) {
    auto const found = values.find(part.array.substr(part.array.rfind('/') + 1));
    if (found == values.end()) continue;
    Numbers block;
    for (auto r = part.row_begin; r < part.row_begin + part.rows; ++r)
      for (auto c = part.col_begin; c < part.col_begin + part.cols; ++c)
        block.push_back(found->second.at(static_cast<std::size_t>(r * part.global_cols + c)));
    part.copy_in(0, part.rows * part.cols, block.data());
  }
  for (auto const& [name, numbers] : values) EXPECT_EQ(trainer.inspection().gather_value(name), numbers) << name;
}

/// A matrix of experts [experts * hidden, ffn] as one of a dense layer: gate and up [experts * ffn, hidden], down
/// [hidden, experts * ffn].
Numbers dense_matrix(Numbers const& of_experts, bool down, double factor) {
  auto const ffn = of_experts.size() / (experts * hidden);
  Numbers out(of_experts.size());
  for (std::size_t e = 0; e < experts; ++e)
    for (std::size_t h = 0; h < hidden; ++h)
      for (std::size_t f = 0; f < ffn; ++f) {
        auto const inner = e * ffn + f;
        out[down ? h * experts * ffn + inner : inner * hidden + h] = factor * of_experts[(e * hidden + h) * ffn + f];
      }
  return out;
}

void expect_near(Numbers const& a, Numbers const& b, std::string const& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  EXPECT_GT(largest, 0.0) << what;
  EXPECT_LE(most, 1e-12 * largest) << what;
}

/// What a number of ranks is divided into, each with the axes of experts in another way.
std::vector<Words> layouts(int ranks) {
  std::string const sequence = "parallel.sequence=true", tp = "parallel.tp=2", pp = "parallel.pp=2",
                    ep = "parallel.ep=2", etp = "parallel.etp=2", dp = "parallel.dp=2";
  if (ranks == 2)
    return {
        {dp}, {dp, ep, "comm.overlap_experts=true"}, {dp, etp}, {tp, sequence, etp}, {tp, sequence, ep}, {tp, sequence},
        {pp}};
  if (ranks == 4)
    return {{"parallel.dp=4", "parallel.ep=4"},
            {"parallel.dp=4", ep, etp, "memory.shard=parameters"},
            {dp, tp, sequence, ep, etp, "model.moe.dispatch=gather"},
            {dp, tp, sequence, ep, "parallel.order=dp-tp-cp-pp"},  // as many ranks as tp, of two replicas
            {dp, pp, ep, "pipeline.schedule=zb_h1"},
            {tp, sequence, pp, etp, "pipeline.schedule=interleaved_1f1b"}};
  return {{"parallel.dp=1"}};
}

// With equal gates the layer is y = 1/E sum_e down_e act_e(x): a dense layer E times as wide, whose down is divided by
// E.
TEST(Experts, AllAlikeAreTheDenseAverage) {
  auto world = comm::Communicator::world();
  Words const data{"model.vocab_size=257", test::licence_text()};
  auto of_experts = data;
  for (char const* word : {"model.moe.experts=4", "model.moe.top_k=4", "model.moe.ffn=16"}) of_experts.push_back(word);
  for (auto const& layout : layouts(world.size())) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    auto words = of_experts;
    words.insert(words.end(), layout.begin(), layout.end());
    Trainer mixture(make_config(words, world.size()), world);
    Trainer dense(make_config(data, 1), comm::Communicator::self());
    std::map<std::string, Numbers> routers, matrices;
    for (auto const& spec : mixture.plan().table.specs()) {
      auto name = spec.name;
      if (name.ends_with("router.weight")) routers[name] = Numbers(experts * hidden);
      auto const at = name.find("moe.experts.");
      if (at == std::string::npos) continue;
      bool const down = name.ends_with("down.weight");
      auto const value = dense_matrix(mixture.inspection().gather_value(name), down, down ? 1.0 / experts : 1.0);
      matrices[name.replace(at, 12, "mlp.")] = value;
    }
    set_values(mixture, routers);
    set_values(dense, matrices);
    mixture.inspection().keep_gradients(true);
    dense.inspection().keep_gradients(true);
    EXPECT_NEAR(mixture.step().loss, dense.step().loss, 1e-12);
    for (auto const& spec : mixture.plan().table.specs()) {
      auto name = spec.name;
      auto gradient = mixture.inspection().gather_gradient(name);
      auto const at = name.find("moe.experts.");
      if (at == std::string::npos && name.find("moe.") != std::string::npos) continue;  // the router
      if (at != std::string::npos) {
        bool const down = name.ends_with("down.weight");
        gradient = dense_matrix(gradient, down, down ? static_cast<double>(experts) : 1.0);
        name.replace(at, 12, "mlp.");
      }
      expect_near(gradient, dense.inspection().gather_gradient(name), name);
    }
  }
}

/// A file of one letter, of whose tokens all are alike: all go to one expert.
class OneLetter {
public:
  explicit OneLetter(comm::Communicator& world) : world_(world) {
    std::array<char, 4096> name{};  // one file for all ranks, which are on one node
    if (world.rank() == 0) folder_.emplace().write("text", std::string(4000, 'a')).copy(name.data(), name.size() - 1);
    world.broadcast(name.data(), std::ssize(name), comm::Type::byte, 0).wait();
    path_ = name.data();
  }
  ~OneLetter() { world_.barrier().wait(); }
  std::string key() const { return "data.path=\"" + path_ + "\""; }

private:
  comm::Communicator& world_;
  std::optional<test::TempDir> folder_;
  std::string path_;
};

TEST(Experts, TakeTheMemoryThatWasPredictedWhereOneGetsAllRows) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  OneLetter const text(world);
  std::optional<double> loss;
  for (int factor = 1; factor <= n; ++factor) {
    SCOPED_TRACE(factor);
    auto const c =
        make_config({"model.vocab_size=257", "model.moe.experts=4", "model.moe.top_k=1", "model.moe.normalize=false",
                     "model.moe.aux_loss=global", text.key(), fmt::format("model.moe.buffer_factor={}", factor),
                     fmt::format("parallel.dp={}", n), fmt::format("parallel.ep={}", n)},
                    n);
    Trainer trainer(c, world);
    double last = 0;
    for (int s = 0; s < 3; ++s) last = trainer.step().loss;
    for (auto load : trainer.expert_load()) {
      std::sort(load.tokens.begin(), load.tokens.end());
      EXPECT_EQ(load.tokens, (std::vector<std::int64_t>{0, 0, 0, 8 * 16}));
    }
    // So in each microbatch all ranks' 16 tokens come to one rank, which has room for 16 factor.
    std::vector<std::int64_t> counts(experts * static_cast<std::size_t>(n));
    for (std::size_t r = 0; r < static_cast<std::size_t>(n); ++r) counts[r * experts + 1] = 16;
    auto const room = layout::layer_sizes(layout::block_sizes(c), c, 0).moe.most_rows;
    EXPECT_EQ(room, 16 * factor);
    layout::ExpertDispatch const dispatch(layout::expert_group(trainer.plan().grid, world.rank(), experts),
                                          world.rank(), counts, room);
    EXPECT_EQ(dispatch.passes(), (n + factor - 1) / factor);
    auto const &found = trainer.memory_in_use(), &expected = trainer.plan().memory_of(0);
    EXPECT_EQ(trainer.inspection().activation_high_water(), trainer.inspection().activation_capacity());
    test::expect_memory(found, expected);
    EXPECT_NEAR(last, loss.value_or(last), 1e-12) << "rows in one pass and in several";
    loss = last;
  }
}

// A text of one letter, no attention and experts that give nothing: then the router's gradient is that of the losses of
// balance alone, at logits of zero. z (ST-MoE, equation 5): 2 c log(E) / E x; balance, with f of the chosen experts,
// which are the first two: c (f_e - 1/E) x. x is the embedding over its root mean square.
TEST(Experts, LossesOfBalanceHaveTheirSize) {
  auto world = comm::Communicator::world();
  int const n = world.size();
  OneLetter const text(world);
  double const c_z = 0.3, c_aux = 0.7;
  for (char const* kind : {"sequence", "global"})
    for (int ep : {1, std::min(n, 2)}) {
      Trainer trainer(make_config({"model.vocab_size=257", "model.moe.experts=4", "model.moe.top_k=2",
                                   "model.moe.ffn=16", text.key(), fmt::format("model.moe.aux_loss={}", kind),
                                   "model.norm_eps=1e-12", fmt::format("model.moe.aux_coefficient={}", c_aux),
                                   fmt::format("model.moe.z_coefficient={}", c_z), fmt::format("parallel.dp={}", n),
                                   fmt::format("parallel.ep={}", ep), fmt::format("batch.micro={}", 4 / n)},
                                  n),
                      world);
      trainer.inspection().keep_gradients(true);
      Numbers embedding;
      for (int step = 0; step < 2; ++step) {  // the global loss counts the choices of the step before
        std::map<std::string, Numbers> values;
        for (std::size_t l = 0; l < 4; ++l) {
          auto const layer = fmt::format("layers.{}.", l);
          values[layer + "norm2.weight"] = Numbers(hidden, 1.0);
          values[layer + "attn.out.weight"] = Numbers(hidden * hidden);
          values[layer + "moe.router.weight"] = Numbers(experts * hidden);
          values[layer + "moe.experts.down.weight"] = Numbers(experts * hidden * 16);
        }
        set_values(trainer, values);
        embedding = trainer.inspection().gather_value("embed.token.weight");
        trainer.step();
      }
      auto const first = embedding.begin() + 'a' * static_cast<std::ptrdiff_t>(hidden);
      Numbers x(first, first + hidden), expected;
      double squares = 0;
      for (double v : x) squares += v * v;
      for (std::size_t e = 0; e < experts; ++e)
        for (double v : x)
          expected.push_back((2 * c_z * std::log(4.0) / 4 + c_aux * ((e < 2 ? 0.5 : 0.0) - 0.25)) * v /
                             std::sqrt(squares / static_cast<double>(hidden)));
      for (std::size_t l = 0; l < 4; ++l) {
        auto const gradient = trainer.inspection().gather_gradient(fmt::format("layers.{}.moe.router.weight", l));
        for (std::size_t i = 0; i < expected.size(); ++i)
          ASSERT_NEAR(gradient[i], expected[i], 1e-6) << kind << " ep " << ep << " layer " << l << ", " << i;
      }
    }
}

std::vector<std::vector<int>> const prompts{
    {3, 1, 4}, {1}, {60, 0}, {7, 7, 7, 7, 7, 7}, {5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2}};

// Replicas have other numbers of texts, or none, and yet their ranks share experts.
TEST(Experts, GiveTheTextsOfOneRank) {
  auto world = comm::Communicator::world();
  Words const qwen{"model.moe.shared_ffn=16", "model.moe.shared_gate=true", "model.moe.normalize=false"};
  Words const deepseek{"model.moe.score=sigmoid", "model.moe.groups=2", "model.moe.group_top_k=1",
                       "model.moe.bias_update_rate=0.05", "model.moe.first_dense=1"};
  for (auto const& model : {qwen, deepseek}) {
    auto const sample = [&](Words const& layout, comm::Communicator const& comm, std::int64_t batch) {
      Words words{"model.vocab_size=61", "data.format=synthetic", "model.moe.experts=4", "model.moe.top_k=2",
                  "model.moe.ffn=16"};
      words.insert(words.end(), model.begin(), model.end());
      words.insert(words.end(), layout.begin(), layout.end());
      Trainer trainer(make_config(words, comm.size()), comm);
      for (int s = 0; s < 3; ++s) trainer.step();
      engine::SampleOptions o;
      o.tokens = 18;  // past the window, where the older half is forgotten
      o.temperature = 0.9;
      o.seed = 11;
      o.batch = batch;
      auto out = trainer.sample(prompts, o);
      for (auto& text : trainer.sample({prompts.front()}, o)) out.push_back(std::move(text));
      return out;
    };
    auto const expected = sample({}, comm::Communicator::self(), 16);
    EXPECT_NE(expected[0], expected[1]);
    std::int64_t batch = 16;  // and 2, in turn
    for (auto const& layout : layouts(world.size()))
      EXPECT_EQ(sample(layout, world, batch = 18 - batch), expected) << fmt::format("{}", fmt::join(layout, " "));
  }
}

// The newest tokens of texts are no sample, of which an expert could take the first ones: a text read at once and one
// that grew would differ.
TEST(Experts, DropNothingFromTexts) {
  auto world = comm::Communicator::world();
  auto const logits = [&](char const* factor) {
    Words words{"model.vocab_size=61",     "data.format=synthetic", "model.moe.experts=4",
                "model.moe.top_k=2",       "model.moe.ffn=16",      std::string("model.moe.capacity_factor=") + factor,
                "context.order=contiguous"};
    auto const layout = layouts(world.size()).front();
    words.insert(words.end(), layout.begin(), layout.end());
    Trainer trainer(make_config(words, world.size()), world);
    std::map<std::size_t, Numbers> out;
    engine::SampleOptions o;
    o.tokens = 3;
    o.observe = [&](std::size_t number, auto const& found) {
      out[number].insert(out[number].end(), found.begin(), found.end());
    };
    trainer.sample(prompts, o);
    return out;
  };
  auto const all = logits("0.0");
  EXPECT_FALSE(all.empty());
  EXPECT_EQ(logits("0.3"), all);
}

}  // namespace
