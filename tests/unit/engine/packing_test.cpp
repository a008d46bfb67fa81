// SPDX-License-Identifier: Apache-2.0
// How the microbatches of a large model are dealt to replicas.

#include <p3d/config/parse.hpp>
#include <p3d/engine/packing.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace {

using namespace p3d;

constexpr std::int64_t length = 131072;

/// Documents of a window and of a few tokens, in turn. No token of it is kept.
class Documents final : public data::TokenSource {
public:
  std::int64_t size() const override { return 2000 * (length + 101); }
  void read(std::int64_t, std::span<int> out) const override { std::fill(out.begin(), out.end(), 1); }
  std::uint64_t hash() const override { return 0; }
  std::string describe() const override { return "documents"; }
  std::int64_t documents() const override { return 4000; }
  layout::Range document(std::int64_t i) const override {
    auto const begin = i / 2 * (length + 101);
    return i % 2 == 0 ? layout::Range{begin, begin + length} : layout::Range{begin + length, begin + length + 101};
  }
};

config::Config input(std::vector<std::string> words) {
  words.insert(words.begin(), {"data.format=megatron", "data.path=/", "data.shuffle=documents", "data.split=0",
                               "run.eval_batches=0", "model.preset=llama-tiny", "model.layers=126",
                               "model.hidden=16384", "model.ffn=53248", "model.heads=128", "model.kv_heads=8",
                               "model.vocab_size=128256", "model.seq_len=131072", "parallel.dp=2", "batch.global=192"});
  auto result = config::parse_text("", "test", "/", words, 2);
  if (!result.config) throw std::runtime_error(config::format(result.errors));
  return *result.config;
}

// Llama 3.1 405B: one sample of 131,072 tokens is 5e17 FLOPs, and 19 of them are more than 2^63.
TEST(Packing, DealsTheWorkOfALargeModelEvenly) {
  Documents const source;
  auto const c = input({"batch.variable=true", "batch.micro=1"});
  data::Sampler const sampler(source, c);
  auto const dealt = engine::deal_batch(c, sampler, 0);
  ASSERT_EQ(dealt.order.size(), 192u);
  std::int64_t of_first = 0, all = 0;
  for (std::size_t i = 0; i < 192; ++i) {
    auto const work = sampler.length(dealt.order[i]) > 100 ? 1 : 0;
    all += work;
    of_first += i < 96 ? work : 0;
  }
  EXPECT_GT(all, 60);
  EXPECT_NEAR(static_cast<double>(of_first), static_cast<double>(all) / 2, 0.5);
  EXPECT_LT(dealt.balance.replicas, 1.02);
  // A microbatch of 32 long samples has more FLOPs than that by itself.
  auto const large = input({"batch.variable=true", "batch.micro=48"});
  auto const four = engine::deal_batch(large, data::Sampler(source, large), 0);
  EXPECT_EQ(four.order.size(), 4u);
  EXPECT_LT(four.balance.replicas, 1.02);
}

// cp = 2 divides a sample by 4, and sequence parallelism each part by tp = 3; a vendor's attention takes steps of 128.
TEST(Packing, LengthsAreMultiplesOfWhatDividesThem) {
  auto c = input({"batch.variable=true", "batch.micro=1"});
  c.parallel.cp = 2;
  EXPECT_EQ(engine::padded_length(c, 101, 1), 104);
  EXPECT_EQ(engine::padded_length(c, 101, 128), 128);
  EXPECT_EQ(engine::padded_length(c, 129, 128), 256);
  c.parallel.tp = 3, c.parallel.sequence = true;
  EXPECT_EQ(engine::padded_length(c, 101, 1), 108);
  EXPECT_EQ(engine::padded_length(c, 101, 128), 384);
  c.model.seq_len = 264;
  EXPECT_EQ(engine::padded_length(c, 101, 128), 264);
  EXPECT_EQ(engine::length_step(), 1);  // without such a library
}

}  // namespace
