// SPDX-License-Identifier: Apache-2.0
// Which ranks read the data: the first stage for its inputs, the last one for its targets, stages between them only
// where documents shape positions or attention.

#include "engine/batch_loader.hpp"

#include <p3d/config/parse.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

using namespace p3d;
using Tokens = std::vector<int>;

constexpr std::int64_t document_tokens = 23;
constexpr int eod = 7;

/// Documents of 23 tokens that end in token 7. It counts how often it is read.
class CountingSource final : public data::TokenSource {
public:
  explicit CountingSource(int& reads) : reads_(&reads) {}
  std::int64_t size() const override { return 100 * document_tokens; }
  void read(std::int64_t first, std::span<int> out) const override {
    ++*reads_;
    for (std::size_t i = 0; i < out.size(); ++i) {
      auto const token = first + static_cast<std::int64_t>(i);
      out[i] = token % document_tokens == document_tokens - 1 ? eod : 8 + static_cast<int>(token % 200);
    }
  }
  std::uint64_t hash() const override { return 0; }
  std::string describe() const override { return "documents"; }
  std::int64_t documents() const override { return 100; }
  layout::Range document(std::int64_t i) const override { return {i * document_tokens, (i + 1) * document_tokens}; }

private:
  int* reads_;
};

/// The loader of a rank of a pipeline of four stages, one each.
struct Rank {
  Rank(std::vector<std::string> words, int stage, int dp = 0, int cp = 0)
      : config([&] {
          words.insert(words.begin(),
                       {"data.format=megatron", "data.path=/", "data.shuffle=documents", "data.split=0.2",
                        "model.preset=llama-tiny", "model.layers=4", "model.vocab_size=256", "model.seq_len=40",
                        "batch.global=8", "batch.micro=2", "parallel.pp=4", "pipeline.schedule=1f1b"});
          bool const more = words.back().starts_with("parallel.");
          auto const result = config::parse_text("", "test", "/", words, more ? 8 : 4);
          if (!result.config) throw std::runtime_error(config::format(result.errors));
          return *result.config;
        }()),
        stages(layout::make_stage_map(config)),
        loader([&] {
          auto source = std::make_unique<CountingSource>(reads);
          data::Sampler sampler(*source, config);
          layout::PerAxis here = layout::PerAxis::only(layout::Axis::pp, stage);
          here.dp = dp;
          here.cp = cp;
          return engine::BatchLoader(config, stages, here, std::move(source), std::move(sampler));
        }()) {
    reads = 0;
  }

  int reads = 0;
  config::Config config;
  layout::StageMap stages;
  engine::BatchLoader loader;

  engine::LoadedTokens load(int stage, std::int64_t step = 0, int microbatch = 1) {
    auto const samples = loader.training(step);
    return loader.load(samples, microbatch, loader.of_stage(stage), loader.length(samples, microbatch));
  }
};

Tokens copy(std::span<int const> tokens) { return {tokens.begin(), tokens.end()}; }

/// Samples `first` and the next one, as the sampler gives them.
struct Expected {
  Tokens inputs, targets, positions, documents;
  Expected(data::Sampler const& sampler, std::int64_t first) {
    for (auto number = first; number < first + 2; ++number) {
      Tokens in(40), out(40), at(40), begins(sampler.packs() ? 40 : 0);
      sampler.train(number, in, out, begins);
      sampler.positions(in, begins, at);
      auto const add = [](Tokens& to, Tokens const& from) { to.insert(to.end(), from.begin(), from.end()); };
      add(inputs, in);
      add(targets, out);
      add(positions, at);
      add(documents, begins);
    }
  }
};

TEST(BatchLoader, ReadsInputsForTheFirstStageAndTargetsForTheLast) {
  for (int stage = 0; stage < 4; ++stage) {
    Rank rank({}, stage);
    auto const found = rank.load(stage);
    EXPECT_EQ(rank.reads > 0, stage == 0 || stage == 3) << "stage " << stage;
    EXPECT_EQ(found.rows.first_sample, 2);
    EXPECT_EQ(found.rows.samples, 2);
    EXPECT_EQ(found.rows.seq_len, 40);
    Expected const expected(rank.loader.sampler(), 2);
    EXPECT_EQ(copy(found.inputs), stage == 0 ? expected.inputs : Tokens());
    EXPECT_EQ(copy(found.targets), stage == 3 ? expected.targets : Tokens());
    EXPECT_TRUE(found.positions.empty());
    EXPECT_TRUE(found.documents.empty());
  }
}

TEST(BatchLoader, ReadsForEveryStageWhereDocumentsMatter) {
  for (auto const& words : {std::vector<std::string>{"data.pack=true"},
                            {"data.reset_positions=true", "data.eod_token=7"},
                            {"data.pack=true", "data.eod_token=7"}}) {
    Rank rank(words, 2);
    auto const found = rank.load(2, 3, 2);
    EXPECT_GT(rank.reads, 0) << words.front();
    Expected const expected(rank.loader.sampler(), 3 * 8 + 4);
    EXPECT_TRUE(found.inputs.empty());
    EXPECT_TRUE(found.targets.empty());
    EXPECT_EQ(copy(found.positions), expected.positions);
    EXPECT_EQ(copy(found.documents), expected.documents);
    EXPECT_LT(*std::ranges::max_element(found.positions), document_tokens);
  }
}

TEST(BatchLoader, ReadsNoTokensForTheLengthOfASample) {
  Rank rank({"batch.variable=true"}, 1);
  auto const found = rank.load(1);
  EXPECT_EQ(found.rows.seq_len, document_tokens - 1);  // the last token of a document is no input
  EXPECT_EQ(rank.loader.tokens_of(0), 8 * (document_tokens - 1));
  EXPECT_EQ(rank.reads, 0);
}

TEST(BatchLoader, GivesARankOfCpItsTokensAndTheirPositions) {
  for (int cp = 0; cp < 2; ++cp) {
    Rank rank({"parallel.cp=2"}, 1, 0, cp);
    auto const found = rank.load(1);
    EXPECT_EQ(rank.reads, 0);
    EXPECT_EQ(found.rows.seq_len, 20);
    EXPECT_EQ(found.rows.sample_tokens, 40);
    ASSERT_EQ(found.positions.size(), 40u);
    for (std::size_t i = 0; i < 40; ++i)
      EXPECT_EQ(found.positions[i], found.rows.tokens.at(static_cast<std::int64_t>(i % 20)));
    Rank first({"parallel.cp=2"}, 0, 0, cp);
    auto const inputs = copy(first.load(0).inputs);
    Expected const expected(first.loader.sampler(), 2);
    ASSERT_EQ(inputs.size(), 40u);
    for (std::size_t i = 0; i < 40; ++i)
      EXPECT_EQ(inputs[i], expected.inputs[i / 20 * 40 + static_cast<std::size_t>(found.positions[i])]);
  }
}

TEST(BatchLoader, ReadsForTheVocabularyInPlaceOfStages) {
  for (int stage : {0, 3}) {
    Rank rank({"pipeline.vocab_parallel=true"}, stage);
    auto const found = rank.load(stage);
    EXPECT_EQ(rank.reads, 0);
    EXPECT_TRUE(found.inputs.empty() && found.targets.empty());
    Expected const expected(rank.loader.sampler(), 6);
    auto const samples = rank.loader.training(0);
    EXPECT_EQ(copy(rank.loader.load(samples, 3, {.inputs = true}, 40).inputs), expected.inputs);
    EXPECT_EQ(copy(rank.loader.load(samples, 3, {.targets = true}, 40).targets), expected.targets);
  }
}

TEST(BatchLoader, CountsTheTargetsOfItsReplica) {
  for (int dp = 0; dp < 2; ++dp) {
    Rank rank({"data.pack=true", "parallel.dp=2"}, 3, dp);
    auto const samples = rank.loader.training(5);
    std::int64_t targets = 0;
    for (int m = 0; m < 2; ++m) {
      auto const all = Expected(rank.loader.sampler(), samples.first(m)).targets;
      targets += std::ranges::count_if(all, [](int t) { return t >= 0; });
    }
    EXPECT_EQ(rank.loader.count_targets(samples), (std::vector<std::int64_t>{targets}));
    EXPECT_LT(targets, 4 * 40) << "the last token of a document predicts nothing";
  }
}

/// Targets of a block, walked to from each input: -1 where a token on the way does not count.
Tokens ahead(Tokens const& targets, std::size_t block) {
  Tokens out;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    auto const end = i / 40 * 40 + 40;
    int token = targets[i];
    for (std::size_t j = i + 1; j <= i + block && token >= 0; ++j) token = j < end ? targets[j] : -1;
    out.push_back(token);
  }
  return out;
}

TEST(BatchLoader, FollowsTheTargetsForMultiTokenPrediction) {
  for (auto const& words : {std::vector<std::string>{},
                            {"data.pack=true"},
                            {"data.eod_mask_loss=true", "data.eod_token=7"},
                            {"batch.variable=true"}}) {
    for (int cp = 0; cp < 2; ++cp) {
      auto all = words;
      all.insert(all.end(), {"model.mtp.depth=3", "parallel.cp=2"});
      Rank rank(all, 3, 0, cp);
      auto const samples = rank.loader.training(0);
      EXPECT_TRUE(samples.predicts);
      auto const length = rank.loader.length(samples, 1);
      auto const found = rank.loader.load(samples, 1, rank.loader.of_stage(3), length);
      Expected const expected(rank.loader.sampler(), 2);
      auto const own = static_cast<std::size_t>(found.rows.seq_len);
      ASSERT_EQ(found.mtp_targets.size(), 3 * 2 * own);
      ASSERT_EQ(found.targets.size(), 2 * own);
      for (std::size_t k = 0; k < 3; ++k) {
        auto const whole = ahead(expected.targets, k + 1);
        for (std::size_t i = 0; i < 2 * own; ++i) {
          auto const token = static_cast<std::size_t>(found.rows.tokens.at(static_cast<std::int64_t>(i % own)));
          EXPECT_EQ(found.mtp_targets[k * 2 * own + i], whole[i / own * 40 + token]) << words.size() << " " << k;
        }
      }
      auto const counted = rank.loader.count_targets(samples);
      ASSERT_EQ(counted.size(), 4u);
      for (std::size_t k = 0; k < 4; ++k) {
        std::int64_t sum = 0;
        for (int m = 0; m < 4; ++m)
          sum += std::ranges::count_if(ahead(Expected(rank.loader.sampler(), samples.first(m)).targets, k),
                                       [](int t) { return t >= 0; });
        EXPECT_EQ(counted[k], sum);
        if (k > 0) {
          EXPECT_LT(counted[k], counted[k - 1]);
        }
      }
      EXPECT_TRUE(rank.load(0).mtp_targets.empty()) << "the last stage alone reads them";
      auto const evaluation = rank.loader.evaluation(0);
      EXPECT_TRUE(rank.loader.load(evaluation, 0, rank.loader.of_stage(3), 40).mtp_targets.empty());
    }
  }
}

}  // namespace
