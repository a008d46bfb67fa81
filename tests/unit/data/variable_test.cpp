// SPDX-License-Identifier: Apache-2.0
// batch.variable: samples that are documents, against the list of documents.

#include <p3d/data/sampler.hpp>

#include "document_list.hpp"

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

namespace {
using namespace p3d;
using namespace p3d::data;
using config::Shuffle;
using test::DocumentList;
using Tokens = std::vector<int>;

config::Config settings(std::int64_t seq_len, std::uint64_t seed, Shuffle shuffle = Shuffle::documents) {
  auto c = test::document_settings(seq_len, shuffle, seed);
  c.batch.variable = true;
  return c;
}

/// The inputs of a sample; the rest is checked.
Tokens sample(Sampler const& sampler, std::int64_t number) {
  auto const length = sampler.length(number), seq_len = sampler.seq_len();
  EXPECT_TRUE(length >= 1 && length <= seq_len) << length;
  Tokens in(static_cast<std::size_t>(seq_len), -7), out(in), documents(in);
  sampler.train(number, in, out, documents);
  for (std::size_t i = 0; i < in.size(); ++i) {
    bool const inside = static_cast<std::int64_t>(i) < length;
    EXPECT_EQ(out[i], inside ? in[i] + 1 : -1);  // a token is its number
    EXPECT_EQ(documents[i], inside ? 0 : static_cast<int>(length));
    if (!inside) {
      EXPECT_EQ(in[i], 0);
    }
  }
  in.resize(static_cast<std::size_t>(length));
  return in;
}

TEST(Variable, EveryTokenButTheFirstOfADocumentIsATargetOnceAnEpoch) {
  std::mt19937 random(13);
  for (std::uint64_t k = 0; k < 1000 && !testing::Test::HasFailure(); ++k) {
    SCOPED_TRACE(k);
    auto const seq_len = 1 + static_cast<std::int64_t>(random() % 40);
    auto const sizes = test::random_documents(random, seq_len, true);
    if (*std::max_element(sizes.begin(), sizes.end()) < 2) continue;
    DocumentList const list(sizes);
    Sampler const sampler(list, settings(seq_len, k, Shuffle::whole_documents)), mixed(list, settings(seq_len, k));
    ASSERT_TRUE(sampler.varies() && sampler.masks() && !sampler.packs());
    std::int64_t expected = 0;
    for (auto const n : sizes) {
      for (auto left = n - 1; left > 0; left -= seq_len) ++expected;
    }
    ASSERT_EQ(sampler.num_train_windows(), expected);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      Tokens targets;
      std::multiset<Tokens> in_order, changed;
      int next = -1;
      for (std::int64_t i = 0; i < expected; ++i) {
        auto const s = sample(sampler, epoch * expected + i);
        ASSERT_TRUE(list.begins(s[0]) || s[0] == next) << "a document, or what follows in it";
        bool const ends = list.begins(s.back() + 2);
        ASSERT_TRUE(ends || std::ssize(s) == seq_len) << "only the last piece is short";
        next = ends ? -1 : s.back() + 1;
        for (auto const t : s) targets.push_back(t + 1);
        in_order.insert(s);
        changed.insert(sample(mixed, epoch * expected + i));
      }
      std::sort(targets.begin(), targets.end());
      Tokens all;
      for (int t = 0; t < list.size(); ++t) {
        if (!list.begins(t)) all.push_back(t);
      }
      ASSERT_EQ(targets, all);
      ASSERT_EQ(in_order, changed);
    }
  }
}

TEST(Variable, DependsOnSeedAndSampleOnly) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 5000; ++i) sizes.push_back(i * 31 % 41);
  DocumentList const list(sizes);
  Sampler const sampler(list, settings(16, 1)), other(list, settings(16, 2));
  std::set<int> firsts;
  bool differs = false;
  for (std::int64_t g : {0, 1, 2, 30000, 17, 7000, 7001, 5}) {
    Sampler const later(list, settings(16, 1));
    auto const s = sample(sampler, g);
    EXPECT_EQ(sample(later, g), s);
    differs = differs || sample(other, g) != s;
  }
  EXPECT_TRUE(differs);
}

// What a run that goes on takes as the tokens before it: of both orders, and of blended sources.
TEST(Variable, CountsTheTokensBeforeASample) {
  auto const check = [](TokenSource const& source, config::Config const& c, std::int64_t samples) {
    Sampler const sampler(source, c);
    std::int64_t tokens = 0;
    for (std::int64_t g = 0; g < samples; ++g) {
      if (g < 40 || g % 1499 == 0) {
        ASSERT_EQ(sampler.tokens_before(g), tokens) << g;
      }
      tokens += sampler.length(g);
    }
    Sampler const later(source, c);
    EXPECT_EQ(later.tokens_before(samples), tokens);
  };
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 3000; ++i) sizes.push_back(i * 31 % 41);
  DocumentList const list(sizes);
  check(list, settings(16, 1), 20000);
  check(list, settings(16, 1, Shuffle::whole_documents), 20000);
  std::vector<std::unique_ptr<TokenSource>> parts;
  for (int k : {0, 1, 2}) {
    parts.push_back(std::make_unique<DocumentList>(
        std::vector<std::int64_t>(sizes.begin() + 500 * k, sizes.begin() + 500 * k + 700)));
  }
  auto c = settings(16, 3);
  c.data.source = {{"a", 1.0}, {"b", 2.0}, {"c", 4.0}};
  check(*make_joined(std::move(parts), {1.0, 2.0, 4.0}), c, 9000);
  c = settings(16, 3);
  c.batch.variable = false;
  EXPECT_EQ(Sampler(list, c).tokens_before(77), 77 * 16);
}

TEST(Variable, EvaluationGoesThroughTheHeldOutDocumentsInOrder) {
  DocumentList const list({30, 12, 1, 4, 9});
  auto c = settings(5, 3);
  c.data.split = 0.8;
  c.batch.global = 3;
  Sampler const sampler(list, c);
  EXPECT_EQ(sampler.num_train_windows(), 6);
  ASSERT_EQ(sampler.num_eval_windows(), 3 + 1 + 2);
  std::vector<std::pair<int, int>> const expected{{30, 5}, {35, 5}, {40, 1}, {43, 3}, {47, 5}, {52, 3}};
  Tokens in(5), out(5), documents(5);
  for (std::int64_t i = 0; i < 9; ++i) {
    auto const [first, length] = expected[static_cast<std::size_t>(i % 6)];
    ASSERT_EQ(sampler.eval_length(i / 3, i % 3), length);
    sampler.eval(i / 3, i % 3, in, out, documents);
    EXPECT_EQ(in[0], first);
    EXPECT_EQ(out[static_cast<std::size_t>(length) - 1], first + length);
    EXPECT_EQ(std::count(out.begin(), out.end(), -1), 5 - length);
    EXPECT_EQ(documents.back(), length < 5 ? length : 0);
  }
}

TEST(Variable, SaysWhenNothingIsToPredict) {
  DocumentList const list({1, 1, 1});
  test::expect_error([&] { Sampler(list, settings(2, 0)); }, "a training document of two tokens or more");
}

}  // namespace
