// SPDX-License-Identifier: Apache-2.0
// batch.variable: samples that are documents, against the list of documents.

#include <p3d/data/sampler.hpp>

#include "document_list.hpp"

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace {
using namespace p3d;
using namespace p3d::data;
using config::Shuffle;
using test::DocumentList;
using Tokens = std::vector<int>;

config::Config settings(std::int64_t seq_len, std::uint64_t seed) {
  auto c = test::document_settings(seq_len, Shuffle::documents, seed);
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
    Sampler const sampler(list, settings(seq_len, k));
    ASSERT_TRUE(sampler.varies() && sampler.masks() && !sampler.packs());
    std::int64_t expected = 0;
    for (auto const n : sizes) {
      for (auto left = n - 1; left > 0; left -= seq_len) ++expected;
    }
    ASSERT_EQ(sampler.num_train_windows(), expected);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      Tokens targets;
      int next = -1;
      for (std::int64_t i = 0; i < expected; ++i) {
        auto const s = sample(sampler, epoch * expected + i);
        ASSERT_TRUE(list.begins(s[0]) || s[0] == next) << "a document, or what follows in it";
        bool const ends = list.begins(s.back() + 2);
        ASSERT_TRUE(ends || std::ssize(s) == seq_len) << "only the last piece is short";
        next = ends ? -1 : s.back() + 1;
        for (auto const t : s) targets.push_back(t + 1);
      }
      std::sort(targets.begin(), targets.end());
      Tokens all;
      for (int t = 0; t < list.size(); ++t) {
        if (!list.begins(t)) all.push_back(t);
      }
      ASSERT_EQ(targets, all);
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
