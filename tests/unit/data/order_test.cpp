// SPDX-License-Identifier: Apache-2.0
// data.shuffle = "documents", "whole_documents" and "megatron", and what ends of documents do.

#include <p3d/base/hash.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>
#include <p3d/data/token_files.hpp>

#include "index_writer.hpp"

#include <support/errors.hpp>

#include <gtest/gtest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

namespace {
using namespace p3d;
using namespace p3d::data;
using config::DataFormat;
using config::Shuffle;
using test::reference;

config::Config settings(std::vector<std::string> const& prefixes, std::int64_t seq_len, Shuffle shuffle) {
  config::Config c;
  c.run.seed = 7;
  c.model.seq_len = seq_len;
  c.model.vocab_size = 1 << 20;
  c.data.format = DataFormat::megatron;
  c.data.shuffle = shuffle;
  c.data.split = 0.0;
  c.batch.global = 1;
  if (prefixes.size() == 1) c.data.path = prefixes;
  if (prefixes.size() > 1) {
    for (auto const& prefix : prefixes) c.data.source.push_back({prefix, 1.0});
  }
  return c;
}

/// seq_len + 1 tokens.
std::vector<int> sample(Sampler const& sampler, std::int64_t number) {
  std::vector<int> in(static_cast<std::size_t>(sampler.seq_len())), out(in.size());
  sampler.train(number, in, out);
  EXPECT_TRUE(std::equal(in.begin() + 1, in.end(), out.begin()));
  in.push_back(out.back());
  return in;
}

// Five seeds: 1, 3.2 and 2.9 epochs, and blends. Written by make_megatron_order.py with numpy.
TEST(MegatronOrder, IsThatOfNumpy) {
  std::ifstream file(reference + "order.dat");
  std::string word, name;
  std::uint64_t seed = 0;
  std::int64_t count = 0;
  int cases = 0;
  while (file >> word >> name >> seed >> count) {
    std::vector<std::string> prefixes;
    std::vector<double> weights{0.3, 1.1, 0.25};
    if (name == "blend10") weights.clear();
    for (std::size_t k = 0; name == "blend10" && k < 10; ++k) weights.push_back(0.05 * static_cast<double>(2 * k + 1));
    for (std::size_t k = 0; k < (name == "0" ? 1 : weights.size()); ++k)
      prefixes.push_back(fmt::format("{}order-{}", reference, k % 3));
    auto c = settings(prefixes, 16, Shuffle::megatron);
    for (std::size_t k = 0; k < c.data.source.size(); ++k) c.data.source[k].weight = weights[k];
    c.run.seed = seed;
    c.run.steps = count;
    auto const source = make_token_source(c);
    Sampler const sampler(*source, c);
    for (std::int64_t i = 0; i < count; ++i) {
      int first = 0;
      std::string hash;
      ASSERT_TRUE(file >> first >> hash);
      auto const tokens = sample(sampler, i);
      ASSERT_EQ(tokens[0], first) << name << ", seed " << seed << ", sample " << i;
      std::string_view const bytes(reinterpret_cast<char const*>(tokens.data()), tokens.size() * sizeof(int));
      ASSERT_EQ(fmt::format("{:016x}", base::fnv1a(bytes)), hash) << name << ", seed " << seed << ", sample " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 21);
}

TEST(MegatronOrder, HasNoMoreSamplesThanWereAskedFor) {
  auto c = settings({reference + "order-0"}, 16, Shuffle::megatron);
  c.run.steps = 10;
  auto const source = make_token_source(c);
  Sampler const sampler(*source, c);
  EXPECT_NO_THROW(sample(sampler, 81));  // those of the epoch
  test::expect_error([&] { sample(sampler, 82); }, "at most 82 samples");
}

// Token i is i; documents of 1 to 40 tokens, some empty.
TEST(DocumentOrder, EveryEpochHasEveryTokenOnce) {
  test::TempDir const dir;
  std::vector<std::int32_t> sizes;
  for (int i = 0; i < 2500; ++i) sizes.push_back(i % 7 == 3 ? 0 : 1 + i * 31 % 40);
  auto const prefix = test::write_pair(dir, "x", sizes);
  std::map<int, int> document_of;  // by its first token
  int begin = 0;
  for (std::size_t d = 0; d < sizes.size(); begin += sizes[d++]) {
    if (sizes[d] > 0) document_of[begin] = sizes[d];
  }
  auto c = settings({prefix}, 16, Shuffle::whole_documents);
  auto const source = make_token_source(c);
  Sampler const sampler(*source, c);
  auto const tokens = static_cast<std::size_t>(source->size());
  std::vector<int> stream;
  for (std::int64_t g = 0; stream.size() < 3 * tokens; ++g) {
    auto const s = sample(sampler, g);
    if (g > 0) {
      EXPECT_EQ(s[0], sample(sampler, g - 1).back());  // each target is an input later
    }
    stream.insert(stream.end(), s.begin(), s.end() - 1);
  }
  std::set<std::vector<int>> orders;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int> const part(stream.begin() + static_cast<std::ptrdiff_t>(epoch * tokens),
                                stream.begin() + static_cast<std::ptrdiff_t>((epoch + 1) * tokens));
    orders.insert(part);
    for (std::size_t i = 0; i < part.size();) {  // whole documents, one behind the other
      auto const document = document_of.find(part[i]);
      ASSERT_NE(document, document_of.end()) << "token " << part[i] << " begins no document";
      for (int k = 0; k < document->second; ++k) ASSERT_EQ(part[i + static_cast<std::size_t>(k)], part[i] + k);
      i += static_cast<std::size_t>(document->second);
    }
    auto sorted = part;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < tokens; ++i) ASSERT_EQ(sorted[i], static_cast<int>(i));
  }
  EXPECT_EQ(orders.size(), 3u);
  EXPECT_NE(std::is_sorted(stream.begin(), stream.begin() + 2000), true);
  // A sampler that begins anywhere reads the same.
  for (std::int64_t g : {3000, 17, 5200, 0}) {
    Sampler const later(*source, c);
    EXPECT_EQ(sample(later, g), sample(sampler, g));
  }
}

/// Of 5,000 samples those that are neighbours in their document of the sample before, as those of a batch are.
int neighbours(Sampler const& sampler) {
  int count = 0;
  for (std::int64_t g = 1, last = sample(sampler, 0)[0]; g < 5000; ++g) {
    auto const first = sample(sampler, g)[0];
    count += first == last + sampler.seq_len() ? 1 : 0;
    last = first;
  }
  return count;
}

// A few long documents: what follows each other in a document must not be a batch.
TEST(DocumentOrder, SamplesOfABatchAreNotNeighbours) {
  test::TempDir const dir;
  std::vector<std::int32_t> sizes;
  for (int i = 0; i < 12; ++i) sizes.push_back(16 * (300 + 40 * i) + i);
  auto const prefix = test::write_pair(dir, "x", sizes);
  auto const whole = settings({prefix}, 16, Shuffle::whole_documents),
             mixed = settings({prefix}, 16, Shuffle::documents);
  auto const source = make_token_source(whole);
  Sampler const in_order(*source, whole), sampler(*source, mixed);
  EXPECT_GT(neighbours(in_order), 4900);
  EXPECT_LT(neighbours(sampler), 10);
  // Of each group of as many samples as an epoch has they are the same ones.
  auto const group = sampler.num_train_windows();
  for (std::int64_t k = 0; k < 3; ++k) {
    std::set<std::vector<int>> a, b;
    for (auto g = k * group; g < (k + 1) * group; ++g) {
      a.insert(sample(in_order, g));
      b.insert(sample(sampler, g));
    }
    EXPECT_EQ(std::ssize(a), group);
    EXPECT_EQ(a, b);
  }
  for (std::int64_t g : {3000, 17, 15200, 0}) {
    Sampler const later(*source, mixed);
    EXPECT_EQ(sample(later, g), sample(sampler, g));
  }
}

TEST(Sampler, HoldsOutWholeDocuments) {
  test::TempDir const dir;
  auto const a = test::write_pair(dir, "a", {50, 60, 70, 80, 90}), b = test::write_pair(dir, "b", {100, 30}, 1000);
  for (auto shuffle : {Shuffle::windows, Shuffle::documents, Shuffle::whole_documents, Shuffle::megatron}) {
    auto c = settings({a, b}, 8, shuffle);
    c.data.split = 0.45;
    c.data.source[0].weight = 3.0;
    c.batch.global = 4;
    auto const source = make_token_source(c);
    Sampler const sampler(*source, c);
    // floor(0.45 * 5) = 2 documents; of two documents at least one.
    EXPECT_EQ(sampler.held_out(), (std::vector<layout::Range>{{180, 350}, {450, 480}}));
    EXPECT_EQ(sampler.num_eval_windows(), 21 + 3);
    std::map<bool, int> from;
    for (std::int64_t g = 0; g < 80; ++g) {
      auto const s = sample(sampler, g);
      ++from[s[0] >= 1000];
      auto const [low, high] = std::minmax_element(s.begin(), s.end());
      if (s[0] < 1000) {
        EXPECT_TRUE(*low >= 0 && *high < 180) << *high;
      } else {
        EXPECT_TRUE(*low >= 1000 && *high < 1100) << *high;
      }
    }
    EXPECT_EQ(from[false], 60);
    std::vector<int> in(8), out(8);
    int second = 0;
    for (std::int64_t i = 0; i < 8; ++i) {
      sampler.eval(i / 4, i % 4, in, out);
      second += in[0] >= 1000 ? 1 : 0;
      EXPECT_TRUE((in[0] >= 180 && out[7] < 350) || (in[0] >= 1100 && out[7] < 1130));
    }
    EXPECT_EQ(second, 2);
  }
  auto c = settings({test::write_pair(dir, "one", {99})}, 8, Shuffle::documents);
  c.data.split = 0.01;
  auto const source = make_token_source(c);
  test::expect_error([&] { Sampler(*source, c); }, "at least 2 documents");
}

TEST(Sampler, SourcesHaveTheirOwnWindows) {
  test::TempDir const dir;
  auto const a = test::write_pair(dir, "a", {500}), b = test::write_pair(dir, "b", {500}, 1000);
  auto c = settings({a, b}, 8, Shuffle::windows);
  auto const source = make_token_source(c);
  Sampler const sampler(*source, c);
  auto const alone = [&](std::string const& prefix) { return settings({prefix}, 8, Shuffle::windows); };
  auto const one = make_token_source(alone(a));
  Sampler const first(*one, alone(a));
  std::vector<int> seconds;
  std::int64_t number = 0;
  for (std::int64_t g = 0; g < 200; ++g) {
    auto const s = sample(sampler, g);
    if (s[0] < 1000) {
      EXPECT_EQ(s, sample(first, number++)) << "the first source is read as it would be alone";
    } else {
      seconds.push_back(s[0] - 1000);
    }
  }
  EXPECT_EQ(seconds.size(), 100u);
  EXPECT_NE(seconds[0] / 8, sample(first, 0)[0] / 8);
  auto heavier = c;
  heavier.data.source[1].weight = 2.0;
  EXPECT_NE(make_token_source(heavier)->hash(), source->hash());
}

// What eval_reads() says, against the windows that eval() reads.
TEST(Sampler, CountsTheWindowsThatAValidationReads) {
  test::TempDir const dir;
  auto const a = test::write_pair(dir, "a", {90, 10}), b = test::write_pair(dir, "b", {900, 100}, 1000);
  for (auto const& [shuffle, weight] : {std::pair{Shuffle::windows, 1.0},
                                        {Shuffle::windows, 1000.0},
                                        {Shuffle::windows, 0.25},
                                        {Shuffle::megatron, 3.5},
                                        {Shuffle::windows, 0.0}}) {
    auto c = settings(weight > 0.0 ? std::vector{a, b} : std::vector{b}, 8, shuffle);
    if (weight > 0.0) c.data.source[0].weight = weight;
    c.data.split = 0.1;
    auto const source = make_token_source(c);
    Sampler const sampler(*source, c);
    ASSERT_EQ(sampler.num_eval_windows(), weight > 0.0 ? 13 : 12);
    std::map<int, int> times;
    std::vector<int> in(8), out(8);
    for (std::int64_t reads = 0; reads < 60; ++reads) {
      auto const said = sampler.eval_reads(reads);
      EXPECT_EQ(said.windows, std::ssize(times));
      auto const first = times.empty() ? 0 : times.begin()->second;
      EXPECT_EQ(said.evenly, std::ranges::all_of(times, [first](auto const& t) { return t.second == first; })) << reads;
      sampler.eval(reads, 0, in, out);
      ++times[in[0]];
    }
  }
  auto c = settings({a, b}, 8, Shuffle::windows);
  c.data.split = 0.1;
  auto const source = make_token_source(c);
  EXPECT_EQ(Sampler(*source, c).eval_reads(16).windows, 9) << "8 reads of the one window, and 8 of the other source";
  c.data.source[0].weight = 1000.0;
  EXPECT_EQ(Sampler(*source, c).eval_reads(16).windows, 1);
}

TEST(Sampler, EndsOfDocuments) {
  test::TempDir const dir;
  auto const prefix = test::write_pair(dir, "x", {9});
  auto c = settings({prefix}, 8, Shuffle::windows);
  c.data.eod_token = 3;
  auto const source = make_token_source(c);
  std::vector<int> in(8), out(8), positions(8);
  Sampler const plain(*source, c);
  plain.train(0, in, out);
  EXPECT_EQ(out, (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_FALSE(plain.masks() || plain.resets_positions());
  plain.positions(in, positions);
  EXPECT_EQ(positions, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  c.data.eod_mask_loss = c.data.reset_positions = true;
  Sampler const masked(*source, c);
  masked.train(0, in, out);
  EXPECT_EQ(out, (std::vector<int>{1, 2, 3, -1, 5, 6, 7, 8}));
  masked.positions(in, positions);
  EXPECT_EQ(positions, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  masked.positions(std::vector<int>{3, 3, 1, 3, 9, 9, 9, 3}, positions);
  EXPECT_EQ(positions, (std::vector<int>{0, 0, 0, 1, 0, 1, 2, 3}));
}

}  // namespace
