// SPDX-License-Identifier: Apache-2.0
// The example inputs are right for the ranks that their comments name, and reproduce themselves.

#include "support.hpp"

#include <p3d/base/precisions.hpp>

#include <algorithm>
#include <filesystem>

namespace p3d::config::test {
namespace {

std::string file(std::string const& name) { return std::string(P3D_SOURCE_DIR) + "/inputs/" + name; }

struct InputCase {
  char const* name;
  int num_ranks;
  std::vector<std::string> overrides;
};

class Example : public testing::TestWithParam<InputCase> {};

TEST_P(Example, IsRightAndReproducesItself) {
  auto const& c = GetParam();
  auto overrides = c.overrides;
  if (std::string(c.name) == "quickstart.toml" && !std::filesystem::exists("/usr/share/common-licenses")) {
    overrides.push_back("data.path=" + std::string(P3D_SOURCE_DIR) + "/LICENSE");  // not a Debian system
  }
  auto const result = parse_file(file(c.name), overrides, c.num_ranks);
  ASSERT_TRUE(result.config) << format(result.errors);
  EXPECT_EQ(result.config->num_ranks(), c.num_ranks);
  auto const again = parse_text(canonical_toml(*result.config), "resolved.toml", "", {}, c.num_ranks);
  ASSERT_TRUE(again.config) << format(again.errors);
  EXPECT_EQ(*again.config, *result.config);
  EXPECT_EQ(hash(*again.config), hash(*result.config));
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, Example,
    testing::Values(
        InputCase{"quickstart.toml", 8, {}},
        InputCase{"quickstart.toml", 4, {"parallel.dp=1", "parallel.tp=1", "parallel.pp=4"}},
        InputCase{"gpt2-tiny.toml", 1, {}}, InputCase{"gpt2-tiny.toml", 6, {"parallel.tp=3", "parallel.pp=2"}},
        InputCase{"gpt2-tiny.toml", 8, {}}, InputCase{"gpt2-tiny.toml", 7, {"parallel.pp=7"}},
        InputCase{"llama-tiny.toml", 6, {"parallel.tp=3", "parallel.pp=2"}},
        InputCase{"llama-tiny.toml", 5, {"parallel.pp=5"}}, InputCase{"gpt2-124m.toml", 4, {}},
        InputCase{"mixtral-tiny.toml", 2, {}}, InputCase{"mixtral-tiny.toml", 8, {"parallel.dp=8", "parallel.ep=8"}},
        // Its files are made by scripts/whole-way.sh.
        InputCase{"whole-way.toml",
                  4,
                  {"data.format=synthetic", "data.path=[]", "data.shuffle=windows",
                   "data.tokenizer=" + std::string(P3D_SOURCE_DIR) + "/tests/unit/text/tokenizers/gpt2.json"}},
#if P3D_16BIT
        InputCase{"llama3-8b.toml", 64, {}},
        InputCase {
          "llama-3b.toml", 2, {}
        }
#else
        InputCase{"llama3-8b.toml", 64, {"run.precision=fp32"}},
        InputCase{"llama-3b.toml", 2, {"run.precision=fp32", "precision.gradients=fp32"}}
#endif
        ));

TEST(Inputs, EachFileIsTestedHere) {
  std::vector<std::string> const tested{"gpt2-124m.toml", "gpt2-tiny.toml",    "llama-3b.toml",   "llama-tiny.toml",
                                        "llama3-8b.toml", "mixtral-tiny.toml", "quickstart.toml", "whole-way.toml"};
  std::size_t met = 0;
  for (auto const& entry : std::filesystem::directory_iterator(std::string(P3D_SOURCE_DIR) + "/inputs")) {
    auto const name = entry.path().filename().string();
    if (!name.ends_with(".toml")) continue;
    EXPECT_NE(std::find(tested.begin(), tested.end(), name), tested.end()) << name;
    ++met;
  }
  EXPECT_EQ(met, tested.size());
}

TEST(Inputs, QuickstartOnTooFewRanksSaysWhatToDo) {
  auto const result = parse_file(file("quickstart.toml"), {}, 4);
  ASSERT_FALSE(result.errors.empty());
  EXPECT_EQ(result.errors.front().found, "dp 2 x tp 2 x cp 1 x pp 2 = 8 ranks, but the run has 4");
}

}  // namespace
}  // namespace p3d::config::test
