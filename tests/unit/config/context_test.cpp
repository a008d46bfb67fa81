// SPDX-License-Identifier: Apache-2.0
// The keys and rules of context parallelism and of sliding windows; every fix is tried.

#include "support.hpp"

#include <fmt/format.h>

namespace p3d::config::test {
namespace {

std::string const eight_heads = "[model]\nheads = 8\nhidden = 64\nlayers = 8\n";

/// An input with cp ranks, an exchange and kv_heads.
ParseResult input(int cp, std::string const& exchange, std::int64_t kv_heads = 8,
                  std::vector<std::string> overrides = {}) {
  overrides.push_back(fmt::format("parallel.cp={}", cp));
  overrides.push_back(fmt::format("model.kv_heads={}", kv_heads));
  if (!exchange.empty()) overrides.push_back("context.exchange=" + exchange);
  return parse(eight_heads, overrides);
}

TEST(Context, ExchangeIsANameOrTwoSizes) {
  auto c = input(4, "").config.value();
  EXPECT_EQ(c.context.exchange, ContextExchange::automatic);
  EXPECT_EQ(c.context.order, ContextOrder::zigzag);
  EXPECT_EQ(input(4, "gather").config->context.exchange, ContextExchange::gather);
  c = input(6, "[2, 3]").config.value();
  EXPECT_EQ(c.context.exchange, ContextExchange::nested);
  EXPECT_EQ(c.context.all_to_all, 2);
  EXPECT_EQ(c.context.ring, 3);
  EXPECT_EQ(good(canonical_toml(c)), c);
  for (auto const& [value, found] : std::vector<std::pair<char const*, char const*>>{
           {"[2]", "1 number"}, {"[1, 2, 2]", "3 numbers"}, {"[0, 4]", "0 in the list"}, {"star", "star"}}) {
    auto const error = only_error(input(4, value));
    EXPECT_EQ(error.key, "context.exchange");
    expect_contains(error.found, found);
  }
}

struct RefusedExchange {
  int cp;
  char const* exchange;
  std::int64_t kv_heads;
  char const *found, *fix;
};

// Every fix in quotes or brackets is an exchange that the same input may have.
TEST(Context, AnExchangeThatDoesNotFitNamesThoseThatDo) {
  for (auto const& r : std::vector<RefusedExchange>{
           {4, "[2, 4]", 8, "[2, 4] for cp 4", "set context.exchange to [2, 2]"},
           {6, "[4, 2]", 8, "[4, 2] for cp 6", "set context.exchange to [2, 3]"},
           {4, "[3, 2]", 8, "[3, 2] for cp 4", "set context.exchange to [2, 2]"},
           {8, "[4, 4]", 2, "[4, 4] for cp 8", "set context.exchange to [2, 4]"},
           {4, "[2, 3]", 1, "[2, 3] for cp 4", "set context.exchange to [1, 4]"},
           {4, "all_to_all", 2, "4 ranks for 2 / 1 = 2 heads", "set context.exchange to [2, 2], or to \"ring\""},
           {6, "all_to_all", 4, "6 ranks for 4 / 1 = 4 heads", "set context.exchange to [2, 3], or to \"ring\""},
           {3, "all_to_all", 8, "3 ranks for 8 / 1 = 8 heads", "set context.exchange to \"ring\" or \"gather\""},
           {8, "[4, 2]", 2, "4 ranks for 2 / 1 = 2 heads", "set context.exchange to [2, 4], or to \"ring\""},
           {2, "[2, 1]", 1, "2 ranks for 1 / 1 = 1 head", "set context.exchange to \"ring\" or \"gather\""}}) {
    SCOPED_TRACE(fmt::format("cp {}, {}, {} heads", r.cp, r.exchange, r.kv_heads));
    auto const error = only_error(input(r.cp, r.exchange, r.kv_heads));
    EXPECT_EQ(error.key, "context.exchange");
    expect_contains(error.found, r.found);
    EXPECT_EQ(error.fix, r.fix);
    auto const open = error.fix.find('[');
    auto const named = open == std::string::npos ? "ring" : error.fix.substr(open, error.fix.find(']') - open + 1);
    EXPECT_TRUE(input(r.cp, named, r.kv_heads).config) << named;
  }
  for (auto const* exchange : {"auto", "ring", "gather"})
    EXPECT_TRUE(input(3, exchange, 1).config) << exchange << " needs no heads";
}

TEST(Context, TheHeadsAreThoseOfARankOfTp) {
  EXPECT_TRUE(input(4, "all_to_all", 8, {"parallel.tp=2"}).config);
  auto const error = only_error(input(8, "all_to_all", 8, {"parallel.tp=2"}));
  EXPECT_EQ(error.found, "8 ranks for 8 / 2 = 4 heads");
  EXPECT_EQ(error.fix, "set context.exchange to [4, 2], or to \"ring\"");
  for (auto const* part : {"parallel.cp=8", "model.kv_heads=8", "parallel.tp=2"}) expect_contains(error.where, part);
  // That kv_heads cannot be divided over tp is said alone.
  EXPECT_EQ(only_error(input(2, "all_to_all", 4, {"parallel.tp=8", "model.ffn=64"})).key, "parallel.tp");
}

TEST(Context, OneRankNeedsNoExchange) {
  EXPECT_TRUE(input(1, "all_to_all").config);
  EXPECT_TRUE(input(1, "[1, 1]").config);
  EXPECT_EQ(only_error(input(1, "[2, 1]")).fix, "set context.exchange to [1, 1]");
}

TEST(Context, EveryRankHasTwoTokens) {
  EXPECT_TRUE(input(4, "", 8, {"model.seq_len=8"}).config);
  auto error = only_error(input(4, "", 8, {"model.seq_len=7"}));
  EXPECT_EQ(error.key, "parallel.cp");
  EXPECT_EQ(error.found, "seq_len 7 for cp 4");
  EXPECT_EQ(error.fix, "set parallel.cp to at most 3, or model.seq_len to at least 8");
  EXPECT_TRUE(input(3, "", 8, {"model.seq_len=7"}).config);
  error = only_error(input(2, "", 8, {"model.seq_len=1"}));
  expect_contains(error.fix, "parallel.cp to at most 1");
  EXPECT_TRUE(input(1, "", 8, {"model.seq_len=1"}).config);
}

TEST(Context, TheOrderFollowsFromPacking) {
  std::string const data = "[data]\nformat = \"synthetic\"\neod_token = 0\n";
  EXPECT_EQ(good(data).context.order, ContextOrder::zigzag);
  EXPECT_EQ(good(data + "pack = true\n").context.order, ContextOrder::striped);
  EXPECT_EQ(good(data + "pack = true\n", {"context.order=contiguous"}).context.order, ContextOrder::contiguous);
}

TEST(RopeLayers, AreOneNumberOrAListThatBeginsAnew) {
  auto const of = [](std::string const& value) {
    return good(eight_heads, {"model.position=rope", "model.rope_layers=" + value}).model;
  };
  EXPECT_TRUE(of("1").rope_layers.empty());
  EXPECT_TRUE(of("[1, 1]").rope_layers.empty());
  EXPECT_FALSE(of("0").rotates(5));
  auto const mixed = of("[1, 0, 1]");
  std::vector<bool> rotates;
  for (std::int64_t l = 0; l < 5; ++l) rotates.push_back(mixed.rotates(l));
  EXPECT_EQ(rotates, (std::vector<bool>{true, false, true, true, false}));
  EXPECT_FALSE(good("").model.rotates(0)) << "learned positions";
  for (auto const* wrong : {"2", "-1", "[]", "[1, 2]", "true", "none"})
    EXPECT_EQ(only_error(parse("", {std::string("model.rope_layers=") + wrong})).key, "model.rope_layers") << wrong;
  EXPECT_NE(only_error(parse("", {"model.rope_layers=[1, 0]"})).expected.find("model.position = \"rope\""),
            std::string::npos);
}

TEST(Window, IsOneNumberOrAListThatBeginsAnew) {
  EXPECT_TRUE(good("").model.window.empty());
  EXPECT_TRUE(good("", {"model.window=0"}).model.window.empty());
  auto const same = good(eight_heads, {"model.window=16"});
  EXPECT_EQ(same.model.window_of(0), 16);
  EXPECT_EQ(same.model.window_of(7), 16);
  auto const mixed = good(eight_heads, {"model.window=[16, 16, 0]"});
  std::vector<std::int64_t> windows;
  for (std::int64_t l = 0; l < 8; ++l) windows.push_back(mixed.model.window_of(l));
  EXPECT_EQ(windows, (std::vector<std::int64_t>{16, 16, 0, 16, 16, 0, 16, 16}));
  EXPECT_EQ(good(canonical_toml(mixed)), mixed);
  for (auto const* wrong : {"-1", "[]", "[16, -1]", "[1.5]", "all"})
    EXPECT_EQ(only_error(parse("", {std::string("model.window=") + wrong})).key, "model.window") << wrong;
}

}  // namespace
}  // namespace p3d::config::test
