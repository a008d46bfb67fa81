// SPDX-License-Identifier: Apache-2.0
// data.pack against brute force: the same samples of a source whose tokens are their own numbers.

#include <p3d/data/sampler.hpp>
#include <p3d/data/token_files.hpp>

#include "document_list.hpp"
#include "index_writer.hpp"

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace {
using namespace p3d;
using namespace p3d::data;
using config::Shuffle;
using test::DocumentList;

constexpr int eod = 1 << 20;

struct Sample {
  explicit Sample(std::int64_t seq_len)
      : inputs(static_cast<std::size_t>(seq_len), -7), targets(inputs), documents(inputs), positions(inputs) {}
  std::vector<int> inputs, targets, documents, positions;
};

/// What packing must make of the numbers of the tokens.
void expect_packed(DocumentList const& list, Sample const& numbers, Sample const& got) {
  int first = 0;
  for (std::size_t i = 0; i < numbers.inputs.size(); ++i) {
    if (i > 0 && list.begins(numbers.inputs[i])) first = static_cast<int>(i);
    bool const last = list.begins(numbers.inputs[i] + 1);
    ASSERT_EQ(got.documents[i], first) << i;
    ASSERT_EQ(got.positions[i], static_cast<int>(i) - first) << i;
    ASSERT_EQ(got.targets[i] == -1, last) << i;
    ASSERT_EQ(last, list.begins(numbers.targets[i])) << i;
  }
}

/// Counts the pairs of stream places below `tokens` - 1 that are counted targets.
void check_packing(std::mt19937& random, Shuffle shuffle, bool by_token, std::uint64_t seed) {
  auto const seq_len = 1 + static_cast<std::int64_t>(random() % 40);
  auto const sizes = test::random_documents(random, seq_len, !by_token);
  DocumentList const numbers(sizes), list(sizes, by_token ? eod : -1);
  auto const tokens = numbers.size();
  auto c = test::document_settings(seq_len, shuffle, seed);
  Sampler const plain(numbers, c);
  c.data.pack = true;
  c.data.eod_token = by_token ? eod : -1;
  Sampler const sampler(list, c);
  ASSERT_TRUE(sampler.packs() && sampler.masks() && sampler.resets_positions());
  auto const windows = (tokens - 1) / seq_len;
  bool const whole = shuffle == Shuffle::whole_documents;  // every token of an epoch; the others windows alone
  auto const samples = whole ? (tokens - 1 + seq_len - 1) / seq_len : windows;
  std::vector<int> counted(static_cast<std::size_t>(tokens)), crossing(counted);
  Sample s(seq_len), n(seq_len);
  for (std::int64_t g = 0; g < samples; ++g) {
    plain.train(g, n.inputs, n.targets);
    sampler.train(g, s.inputs, s.targets, s.documents);
    sampler.positions(s.inputs, s.documents, s.positions);
    expect_packed(numbers, n, s);
    for (std::int64_t i = 0; i < seq_len && (!whole || g * seq_len + i < tokens - 1); ++i) {
      auto const at = static_cast<std::size_t>(i);
      ++(s.targets[at] == -1 ? crossing : counted)[static_cast<std::size_t>(n.targets[at])];
    }
  }
  auto const slack = whole ? 0 : tokens - 1 - windows * seq_len;
  std::int64_t missing = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto const times = counted[static_cast<std::size_t>(t)];
    ASSERT_LE(times, numbers.begins(t) ? 0 : 1) << t;
    ASSERT_LE(crossing[static_cast<std::size_t>(t)], numbers.begins(t) ? 1 : 0) << t;
    missing += numbers.begins(t) ? 0 : 1 - times;
  }
  ASSERT_LE(missing, slack);
}

TEST(Pack, EveryTokenButTheFirstOfADocumentIsATargetOnce) {
  std::mt19937 random(11);
  for (std::uint64_t i = 0; i < 10000 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    auto const shuffle =
        std::vector{Shuffle::windows, Shuffle::documents, Shuffle::whole_documents, Shuffle::megatron}[i % 4];
    check_packing(random, shuffle, i / 4 % 2 == 0, i);
  }
}

TEST(Pack, TargetsDoNotDependOnWhetherDocumentsAreWanted) {
  DocumentList const list({5, 1, 20, 7});
  auto c = test::document_settings(8, Shuffle::documents, 3);
  c.data.pack = true;
  Sampler const sampler(list, c);
  for (std::int64_t g = 0; g < 12; ++g) {
    Sample a(8), b(8);
    sampler.train(g, a.inputs, a.targets, a.documents);
    sampler.train(g, b.inputs, b.targets);
    EXPECT_EQ(a.inputs, b.inputs);
    EXPECT_EQ(a.targets, b.targets);
  }
}

TEST(Pack, EvaluationToo) {
  for (int const token : {-1, eod}) {
    DocumentList const numbers({30, 6, 4, 9}), list({30, 6, 4, 9}, token);
    auto c = test::document_settings(5, Shuffle::windows, 3);
    c.data.split = 0.75;
    c.data.pack = true;
    c.data.eod_token = token;
    c.batch.global = 3;
    Sampler const sampler(list, c);
    ASSERT_EQ(sampler.num_eval_windows(), 3);
    Sample s(5), n(5);
    for (std::int64_t i = 0; i < 3; ++i) {
      sampler.eval(1, i, s.inputs, s.targets, s.documents);
      sampler.positions(s.inputs, s.documents, s.positions);
      numbers.read(30 + 5 * i, n.inputs);
      numbers.read(31 + 5 * i, n.targets);
      expect_packed(numbers, n, s);
    }
  }
}

// A validation in which nothing is predicted would have a loss of 0: it is refused, unless some window that it reads
// has a target.
TEST(Pack, AValidationPredictsSomething) {
  std::vector<std::int64_t> sizes{30};
  sizes.insert(sizes.end(), 5, 1);  // the first validation window is 5 documents of a token
  sizes.push_back(6);
  for (auto const& [masks, token] : {std::pair{false, -1}, {false, eod}, {true, eod}}) {
    DocumentList const list(sizes, token);
    auto c = test::document_settings(5, Shuffle::windows, 3);
    c.data.split = 0.9;  // all documents but the first
    c.data.pack = !masks;
    c.data.eod_mask_loss = masks;
    c.data.eod_token = token;
    EXPECT_EQ(Sampler(list, c).num_eval_windows(), 2) << "nobody evaluates";
    c.run.eval_batches = 1;
    test::expect_error([&] { Sampler(list, c); },
                       token < 0 ? "none in 1 window (data.split = 0.9): every document is a single token"
                                 : "none in 1 window (data.split = 0.9): no target counts behind data.eod_token");
    c.run.eval_batches = 2;
    EXPECT_EQ(Sampler(list, c).num_eval_windows(), 2) << "the second window has targets";
  }
}

TEST(Pack, FilesSayWhereDocumentsEnd) {
  test::TempDir const dir;
  auto const pair = test::write_pair(dir, "x", {5, 0, 0, 7, 1, 9, 0});
  dir.write("y/a.txt", "hello");
  dir.write("y/b.txt", "");
  dir.write("y/c.txt", "my world");
  std::vector<layout::Range> const expected{{0, 5}, {5, 12}, {12, 13}, {13, 22}}, texts{{0, 5}, {5, 13}};
  auto const documents = [](TokenSource const& source) {
    std::vector<layout::Range> out;
    for (std::int64_t t = 0; t < source.size(); t = out.back().end) {
      out.push_back(source.document_with(t));
      EXPECT_EQ(source.document_with(out.back().end - 1), out.back());
    }
    return out;
  };
  TokenFiles const megatron(config::DataFormat::megatron, {pair}), text(config::DataFormat::text, {dir / "y"});
  EXPECT_EQ(documents(megatron), expected);
  EXPECT_EQ(documents(text), texts);
  EXPECT_EQ(text.documents(), 0);
  EXPECT_EQ(documents(DocumentList({5, 0, 0, 7, 1, 9, 0})), expected);
  std::vector<std::unique_ptr<TokenSource>> parts;
  parts.push_back(std::make_unique<DocumentList>(std::vector<std::int64_t>{4}));
  parts.push_back(std::make_unique<TokenFiles>(config::DataFormat::text, std::vector<std::string>{dir / "y"}));
  EXPECT_EQ(documents(*make_joined(std::move(parts), {1.0, 1.0})),
            (std::vector<layout::Range>{{0, 4}, {4, 9}, {9, 17}}));
}

}  // namespace
