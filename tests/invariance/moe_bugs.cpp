// SPDX-License-Identifier: Apache-2.0
// What users of other trainers report of mixture-of-experts training, each as a test against one rank, in fp64.

#include "train.hpp"

#include <p3d/config/parse.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using Words = std::vector<std::string>;
using test::Also;
using test::RunResult;

config::ParseResult parse(Words const& more, int ranks) {
  Words words{"model.preset=llama-tiny", "model.vocab_size=257", "model.layers=2",     "model.hidden=32",
              "model.heads=4",           "model.kv_heads=4",     "model.seq_len=16",   "model.ffn=16",
              "model.moe.experts=4",     "model.moe.top_k=2",    "run.precision=fp64", "run.steps=12",
              "run.eval_batches=0",      "optimizer.lr=3e-3",    "batch.global=8",     p3d::test::licence_text()};
  words.insert(words.end(), more.begin(), more.end());
  return config::parse_text("", "moe_bugs", P3D_SOURCE_DIR, words, ranks);
}

RunResult run(Words words, Words const& layout, comm::Communicator const& comm, int steps = 4) {
  words.insert(words.end(), layout.begin(), layout.end());
  auto const parsed = parse(words, comm.size());
  EXPECT_TRUE(parsed.config) << config::format(parsed.errors);
  return test::train(parsed.config.value(), comm, steps, Also::values);
}

double most_apart(std::vector<double> const& a, std::vector<double> const& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0, largest = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(a[i]));
  }
  return most / largest;
}

/// Everything of a run is that of one rank.
void expect_same(RunResult const& one, RunResult const& other) {
  auto const [loss, gradient] = test::deviations(one, other);
  EXPECT_LE(loss, 1e-9);
  EXPECT_LE(gradient, 1e-12);
  EXPECT_LE(most_apart(one.norms, other.norms), 1e-9);
  EXPECT_EQ(one.expert_tokens, other.expert_tokens);
  for (auto const& [name, values] : one.values) EXPECT_LE(most_apart(values, other.values.at(name)), 1e-9) << name;
}

class MoeBugs : public ::testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
  bool four() const { return world.size() == 4; }
  /// dp and whatever else, of all ranks.
  Words with_dp(int others, Words words) const {
    words.push_back(fmt::format("parallel.dp={}", world.size() / others));
    return words;
  }
  void compare(Words const& model, Words const& layout) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    expect_same(run(model, {}, comm::Communicator::self()), run(model, layout, world));
  }
};

// Megatron: the norm of the gradient leaves out the experts if ep and tp are above 1.
TEST_F(MoeBugs, GradNormCountsExpertsWithEpAndTp) {
  compare({}, with_dp(2, {"parallel.tp=2", "parallel.sequence=true", "parallel.ep=2"}));
}

// Megatron PR#5916: with ep = 1 and etp below tp experts get a part of the gradient, and ranks diverge.
TEST_F(MoeBugs, ExpertsGetTheWholeGradientWhereEtpIsNotTp) {
  compare({}, with_dp(2, {"parallel.tp=2", "parallel.sequence=true", "parallel.etp=1"}));
  compare({}, with_dp(1, {"parallel.etp=2"}));
}

// PyTorch #160285, DeepSpeed PR#5259, MegaBlocks #86: gradients of experts ep times too large; Megatron #7160: too
// small.
TEST_F(MoeBugs, GradientsOfExpertsAreNotScaledByEp) {
  auto const one = run({}, {}, comm::Communicator::self(), 1);
  auto const ep = run({}, with_dp(1, {fmt::format("parallel.ep={}", world.size())}), world, 1);
  for (char const* name : {"layers.0.moe.experts.up.weight", "layers.1.moe.experts.down.weight"}) {
    auto const &a = one.gradients.at(name), &b = ep.gradients.at(name);
    auto const norm = [](auto const& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); };
    EXPECT_GT(norm(a), 0.0);
    EXPECT_NEAR(norm(b) / norm(a), 1.0, 1e-12) << name;
  }
}

// Megatron #3672, #3768, PR#5047, MegaBlocks #85: the scale of the losses of balance depends on tp, cp, pp.
TEST_F(MoeBugs, LossesOfBalanceDoNotDependOnTheLayout) {
  for (std::string const kind : {"sequence", "global"}) {
    Words const model{"model.moe.aux_loss=" + kind, "model.moe.aux_coefficient=3", "model.moe.z_coefficient=0.3"};
    for (Words const& layout : {with_dp(2, {"parallel.tp=2", "parallel.sequence=true"}), with_dp(2, {"parallel.cp=2"}),
                                with_dp(2, {"parallel.pp=2"}), with_dp(1, {"batch.micro=2"}),
                                with_dp(1, {"memory.recompute=full", "parallel.ep=2"})})
      compare(model, layout);
  }
}

// Megatron #2767: with groups the loss of balance counts other experts than rows are sent to.
TEST_F(MoeBugs, LossOfBalanceCountsTheChosenExpertsOfGroups) {
  Words const model{"model.moe.aux_loss=global", "model.moe.groups=2", "model.moe.group_top_k=1"};
  auto const got = run(model, with_dp(1, {"parallel.ep=2"}), world, 2);
  for (int l = 0; l < 2; ++l) {
    auto const& tokens = got.expert_tokens.at(static_cast<std::size_t>(l));  // those that were sent
    auto const& load = got.values.at(fmt::format("layers.{}.moe.router.load", l));
    for (std::size_t e = 0; e < tokens.size(); ++e)
      EXPECT_DOUBLE_EQ(load[e], static_cast<double>(tokens[e]) / (8 * 16 * 2));
    // Both choices of a token are in one group.
    EXPECT_EQ((tokens[0] + tokens[1]) % 2, 0);
  }
}

// Megatron #6108: a packed row counts as one sequence.
TEST_F(MoeBugs, BalanceOverSequencesOfPackedRowsIsRefused) {
  auto const parsed = parse({"model.moe.aux_loss=sequence", "data.pack=true", "data.eod_token=10"}, 1);
  ASSERT_EQ(parsed.errors.size(), 1u);
  EXPECT_EQ(parsed.errors[0].key, "model.moe.aux_loss");
}

// TorchTitan PR#4054: the router's gradient lacks a sum with tp and without ep.
TEST_F(MoeBugs, RouterGradientIsWholeWithTpAndNoEp) {
  compare({"model.moe.z_coefficient=0.1"}, with_dp(2, {"parallel.tp=2", "parallel.sequence=true"}));
}

// Megatron #785: dense parameters and those of experts are clipped apart.
TEST_F(MoeBugs, OneNormClipsAllParameters) {
  compare({"optimizer.grad_clip=0.01", "optimizer.type=sgd"}, with_dp(1, {"parallel.ep=2"}));
}

// TorchTitan: what is recomputed counts tokens twice.
TEST_F(MoeBugs, RecomputationCountsTokensOnce) {
  Words const model{"model.moe.bias_update_rate=0.01", "model.layers=4"};
  auto const plain = run(model, {}, comm::Communicator::self());
  for (Words const& words :
       {Words{"memory.recompute=full"}, Words{"memory.recompute=full", "memory.recompute_group=2"}}) {
    auto const again = run(model, with_dp(1, words), world);
    expect_same(plain, again);
    for (auto const& tokens : again.expert_tokens)
      EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), 8 * 16 * 2);
    EXPECT_NE(again.values.at("layers.3.moe.router.bias"), std::vector<double>(4, 0.0)) << "biases move";
  }
}

// Megatron-Bridge PR#6009, #5396: replicated parameters inside experts drift apart. A replica that has drifted gives
// other losses.
TEST_F(MoeBugs, ReplicasDoNotDrift) {
  Words const model{"model.moe.shared_ffn=16", "model.moe.shared_gate=true", "model.moe.bias_update_rate=0.01"};
  Words const layout = four() ? with_dp(1, {"parallel.ep=2", "parallel.etp=2"}) : with_dp(1, {"parallel.ep=2"});
  expect_same(run(model, {}, comm::Communicator::self(), 8), run(model, layout, world, 8));
}

// All tokens to one expert, in several passes, and experts without a token: a text of one letter, whose tokens are
// alike.
TEST_F(MoeBugs, AllTokensToOneExpert) {
  test::SharedFolder const folder(world);
  auto const text = folder / "text";
  if (world.rank() == 0) std::ofstream(text) << std::string(4000, 'a');
  world.barrier().wait();
  Words const model{"model.moe.top_k=1", "model.moe.normalize=false", "model.moe.buffer_factor=1.0",
                    std::string("data.path=\"") + text + "\""};
  auto const one = run(model, {}, comm::Communicator::self());
  for (auto tokens : one.expert_tokens) {
    std::sort(tokens.begin(), tokens.end());
    EXPECT_EQ(tokens, (std::vector<std::int64_t>{0, 0, 0, 8 * 16}));
  }
  auto const other = run(model, with_dp(1, {fmt::format("parallel.ep={}", world.size())}), world);
  EXPECT_EQ(one.expert_tokens, other.expert_tokens);
  auto const [loss, gradient] = test::deviations(one, other);
  EXPECT_LE(loss, 1e-9);
  EXPECT_LE(gradient, 1e-12);
}

// A rank that has all experts receives nothing: there is no buffer that could be too small.
TEST_F(MoeBugs, OneRankNeedsNoRoomForRowsOfOthers) {
  auto const expected = run({}, {}, comm::Communicator::self());
  for (char const* factor : {"0.05", "0.5"}) {
    SCOPED_TRACE(factor);
    Words const little{std::string("model.moe.buffer_factor=") + factor};
    expect_same(expected, run(little, {}, comm::Communicator::self()));
    expect_same(expected, run(little, with_dp(1, {"memory.recompute=full"}), world));
  }
}

// Results of the ranks of etp lie one behind the other, in blocks of a rank's own rows, which are fewer on some ranks.
TEST_F(MoeBugs, RanksOfDividedExpertsHoldUnequalNumbersOfTokens) {
  Words const model{"model.seq_len=17"};
  auto const expected = run(model, {}, comm::Communicator::self());
  for (char const* factor : {"0.3", "2"})
    for (char const* axis : {"parallel.cp=2", "parallel.tp=2"}) {
      Words words{axis, std::string("parallel.sequence=") + (axis[9] == 't' ? "true" : "false"), "parallel.etp=2",
                  std::string("model.moe.buffer_factor=") + factor};
      if (four()) words.emplace_back("parallel.ep=2");
      SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
      expect_same(expected, run(model, with_dp(2, words), world));
    }
}

// Ranks of one cp or tp group are in several groups that share experts, of which each goes through as many passes as
// its own routing needs. Two microbatches interleave alike on all of them nevertheless.
TEST_F(MoeBugs, PairsInterleaveAlikeWhereGroupsNeedOtherNumbersOfPasses) {
  if (!four()) return;  // with two ranks one group is all of them
  Words const model{"model.seq_len=20",
                    "model.layers=4",
                    "model.moe.experts=8",
                    "model.moe.shared_ffn=16",
                    "model.moe.buffer_factor=1.0",
                    "comm.timeout_s=60"};
  auto const expected = run(model, {}, comm::Communicator::self(), 1);
  Words const cp{"parallel.cp=4"}, tp{"parallel.tp=4", "parallel.sequence=true"},
      both{"parallel.cp=2", "parallel.tp=2", "parallel.sequence=true"};
  for (auto const& mesh : {cp, tp, both})
    for (char const* recompute : {"none", "full"}) {
      auto words = mesh;
      for (std::string const word : {"parallel.ep=2", "comm.overlap_experts=true"}) words.push_back(word);
      words.push_back(std::string("memory.recompute=") + recompute);
      SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
      expect_same(expected, run(model, words, world, 1));
    }
}

// What a capacity drops was chosen: a bias that follows the rows that are left would never move from a busy expert.
TEST_F(MoeBugs, DroppedChoicesCount) {
  Words const model{"model.moe.capacity_factor=0.5", "model.moe.bias_update_rate=0.05", "model.moe.aux_loss=global",
                    "model.seq_len=17"};
  auto const one = run(model, {}, comm::Communicator::self());
  ASSERT_EQ(one.expert_tokens.size(), 2u);
  for (auto const& tokens : one.expert_tokens)
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), 8 * 17 * 2);
  // The first layer of the first step chooses before anything is dropped.
  auto const all = run({"model.seq_len=17"}, {}, comm::Communicator::self(), 1);
  EXPECT_EQ(run(model, {}, comm::Communicator::self(), 1).expert_tokens.front(), all.expert_tokens.front());
  for (Words const& words :
       {Words{"parallel.ep=2", "parallel.cp=2", "context.order=contiguous"},
        Words{"parallel.ep=2", "parallel.tp=2", "parallel.sequence=true", "memory.recompute=full"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
    expect_same(one, run(model, with_dp(2, words), world));
  }
}

}  // namespace
