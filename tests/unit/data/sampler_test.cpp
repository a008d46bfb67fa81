// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace {
using namespace p3d;
using namespace p3d::data;

// Token i is i, so a sample shows where it was read.
class Counting final : public TokenSource {
public:
  explicit Counting(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  void read(std::int64_t first, std::span<int> out) const override {
    ASSERT_GE(first, 0);
    ASSERT_LE(first + static_cast<std::int64_t>(out.size()), size_);
    std::iota(out.begin(), out.end(), static_cast<int>(first));
  }
  std::uint64_t hash() const override { return 0; }
  std::string describe() const override { return "counting"; }

private:
  std::int64_t size_;
};

config::Config settings(std::int64_t seq_len, double split = 0.0) {
  config::Config c;
  c.run.seed = 7;
  c.model.seq_len = seq_len;
  c.data.split = split;
  c.batch.global = 3;
  return c;
}

// First token of a training sample, after checking that the sample is seq_len + 1 tokens in a row.
std::int64_t start(Sampler const& sampler, std::int64_t sample) {
  std::vector<int> in(static_cast<std::size_t>(sampler.seq_len())), out(in.size());
  sampler.train(sample, in, out);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(in[i], in[0] + static_cast<int>(i));
    EXPECT_EQ(out[i], in[i] + 1);
  }
  return in[0];
}

// The next two: numbers from an implementation of the definition in Python integers (Philox included).
TEST(Permute, KnownValues) {
  auto const key = base::random_key(7, "data.order");
  std::vector<std::uint64_t> small;
  for (std::uint64_t x = 0; x < 10; ++x) small.push_back(permute(key, 3, x, 10));
  EXPECT_EQ(small, (std::vector<std::uint64_t>{9, 8, 4, 5, 2, 3, 7, 6, 0, 1}));
  EXPECT_EQ(permute(key, 1, 0, 1'000'000'000'000), 143016187781u);
  EXPECT_EQ(permute(key, 1, 1, 1'000'000'000'000), 240624182309u);
  EXPECT_EQ(permute(key, 1, 999'999'999'999, 1'000'000'000'000), 201759437281u);
}

TEST(Sampler, KnownStarts) {
  Counting const source(1000);
  Sampler const sampler(source, settings(64));
  ASSERT_EQ(sampler.num_train_windows(), 15);
  std::vector<std::int64_t> starts;
  for (std::int64_t g = 0; g < 20; ++g) starts.push_back(start(sampler, g));
  EXPECT_EQ(starts, (std::vector<std::int64_t>{72,  392, 8,   328, 776, 648, 840, 584, 904, 520,
                                               456, 712, 200, 264, 136, 335, 15,  911, 399, 79}));
}

TEST(Permute, IsABijectionForEveryCount) {
  auto const key = base::random_key(5, "test");
  for (std::uint64_t count = 1; count <= 300; ++count) {
    for (std::uint64_t epoch : {0u, 1u}) {
      std::vector<int> hit(count);
      for (std::uint64_t x = 0; x < count; ++x) ++hit.at(permute(key, epoch, x, count));
      EXPECT_EQ(std::count(hit.begin(), hit.end(), 1), static_cast<std::ptrdiff_t>(count));
    }
  }
  test::expect_error([&] { permute(key, 0, 5, 5); }, "the permuted number is in range");
}

TEST(Permute, EpochsAndKeysDiffer) {
  auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    std::vector<std::uint64_t> out;
    for (std::uint64_t x = 0; x < 1000; ++x)
      out.push_back(permute(base::random_key(seed, "data.order"), epoch, x, 1000));
    return out;
  };
  std::set<std::vector<std::uint64_t>> all;
  for (std::uint64_t seed : {1u, 2u}) {
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) all.insert(order(seed, epoch));
  }
  EXPECT_EQ(all.size(), 10u);
}

TEST(Sampler, EveryEpochReadsDisjointWindowsOnce) {
  for (std::int64_t tokens : {17, 33, 100, 999, 1000, 1001}) {
    Counting const source(tokens);
    Sampler const sampler(source, settings(16));
    auto const windows = sampler.num_train_windows();
    EXPECT_EQ(windows, (tokens - 1) / 16);
    std::set<std::int64_t> offsets;
    for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
      std::vector<std::int64_t> starts;
      for (std::int64_t i = 0; i < windows; ++i) {
        EXPECT_EQ(sampler.epoch(epoch * windows + i), epoch);
        starts.push_back(start(sampler, epoch * windows + i));
      }
      std::sort(starts.begin(), starts.end());
      auto const slack = (tokens - 1) % 16;
      EXPECT_LE(starts.front(), slack);
      for (std::size_t i = 1; i < starts.size(); ++i) EXPECT_EQ(starts[i] - starts[i - 1], 16);
      offsets.insert(starts.front());
    }
    EXPECT_LE(static_cast<std::int64_t>(offsets.size()), (tokens - 1) % 16 + 1);
    if ((tokens - 1) % 16 > 2) {
      EXPECT_GT(offsets.size(), 2u) << "the offset changes with the epoch";
    }
  }
}

TEST(Sampler, TrainingAndHeldOutPartsAreApart) {
  Counting const source(1000);
  Sampler const sampler(source, settings(16, 0.1));
  std::vector<int> in(16), out(16);
  for (std::int64_t g = 0; g < 500; ++g) {
    sampler.train(g, in, out);
    EXPECT_LT(out.back(), 900);
  }
  ASSERT_EQ(sampler.num_eval_windows(), 6);  // (100 - 1) / 16
  for (std::int64_t batch = 0; batch < 5; ++batch) {
    for (std::int64_t i = 0; i < 3; ++i) {
      sampler.eval(batch, i, in, out);
      EXPECT_EQ(in.front(), 900 + 16 * ((3 * batch + i) % 6));
      EXPECT_EQ(out.back(), in.front() + 16);
    }
  }
}

TEST(Split, HeldOutPartIsTheRoundedDownFraction) {
  EXPECT_EQ(split_tokens(1000, 0.1).held_out, (layout::Range{900, 1000}));
  EXPECT_EQ(split_tokens(1009, 0.1).held_out, (layout::Range{909, 1009}));
  EXPECT_EQ(split_tokens(7, 0.0).held_out.size(), 0);
  EXPECT_EQ(split_tokens(7, 0.0).training, (layout::Range{0, 7}));
}

TEST(Sampler, TooFewTokensSaysHowManyAreNeeded) {
  Counting const source(100);
  auto error = [&](std::int64_t seq_len, double split) {
    try {
      Sampler const sampler(source, settings(seq_len, split));
    } catch (base::Error const& e) {
      return e.text().expected + " | " + e.text().found + " | " + e.text().fix;
    }
    return std::string("none");
  };
  EXPECT_EQ(error(99, 0.0), "none");
  EXPECT_EQ(error(100, 0.0),
            "at least 101 training tokens (model.seq_len + 1) | 100 of the 100 tokens (data.split = 0) | "
            "add text, or lower model.seq_len or data.split");
  EXPECT_EQ(error(9, 0.1), "none");
  EXPECT_EQ(error(10, 0.1),
            "at least 11 validation tokens (model.seq_len + 1) | 10 of the 100 tokens (data.split = 0.1) | "
            "add text, lower model.seq_len, raise data.split, or set run.eval_batches = 0");
  auto c = settings(10, 0.1);
  c.run.eval_batches = 0;
  EXPECT_NO_THROW(Sampler(source, c));
}

TEST(Sampler, GlobalSampleNumbersAreConsecutive) {
  EXPECT_EQ(global_sample(0, 0, 8), 0);
  EXPECT_EQ(global_sample(2, 7, 8), 23);
  EXPECT_EQ(global_sample(3, 0, 8), 24);
}

}  // namespace
