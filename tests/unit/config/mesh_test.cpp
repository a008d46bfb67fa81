// SPDX-License-Identifier: Apache-2.0
// Axes of experts without any, and the experts' factorisation of a stage's ranks.
#include "support.hpp"

#include <p3d/config/refinement.hpp>

#include <fmt/format.h>

namespace p3d::config::test {
namespace {

ParseResult layout(std::vector<std::string> const& overrides, int ranks) {
  return parse("", overrides, ranks, Purpose::layout);
}

TEST(Mesh, RefusesToDivideTheExpertsOfADenseModel) {
  auto const error = only_error(parse("[parallel]\netp = 2\n", {"parallel.ep=2"}, 4));
  EXPECT_EQ(error.key, "parallel.etp");
  EXPECT_EQ(error.where,
            "t.toml:2:7 (parallel.etp = 2); command line: parallel.ep=2; t.toml (model.moe.experts = 0 by default)");
  EXPECT_EQ(error.expected, "parallel.etp = 1 and parallel.ep = 1: a dense model has no experts to divide");
  EXPECT_EQ(error.found, "etp 2, ep 2");
  expect_contains(error.fix, "or model.moe.experts");
  expect_contains(error.fix, "p3d mesh");
  EXPECT_EQ(only_error(parse("", {"parallel.etp=2"}, 4)).key, "parallel.etp");
  good("", {"parallel.etp=2", "parallel.ep=2", "model.moe.experts=2"}, 4);
  good("[parallel]\ncp = 2\netp = 1\nep = 1\n");
}

TEST(Mesh, ALayoutTakesThemAndWhatIsLeftIsEdp) {
  auto const c = layout({"parallel.tp=4", "parallel.cp=2", "parallel.ep=8", "batch.global=3", "model.heads=3"}, 32);
  ASSERT_TRUE(c.config) << format(c.errors);
  EXPECT_EQ(c.config->parallel.dp, 4);
  EXPECT_EQ(c.config->parallel.edp, 4);
  EXPECT_EQ(c.config->num_ranks(), 32);
  EXPECT_EQ(good("", {"parallel.tp=2", "parallel.pp=2"}, 8).parallel.edp, 4);
}

TEST(Mesh, ALayoutWithoutRefinementNamesTheNearestOnesThatWork) {
  auto error = only_error(layout({"parallel.tp=6", "parallel.dp=4", "parallel.ep=4"}, 24));
  EXPECT_EQ(error.where, "command line: parallel.tp=6; command line: parallel.dp=4; command line: parallel.ep=4");
  EXPECT_EQ(error.found, "tp 6 x cp 1 x dp 4 and etp 1 x ep 4 x edp 6");
  EXPECT_EQ(error.fix, "set parallel.etp to 3, or parallel.ep to 3 or 6");
  for (auto const* works : {"parallel.etp=3", "parallel.ep=3", "parallel.ep=6"})
    EXPECT_TRUE(layout({"parallel.tp=6", "parallel.dp=4", "parallel.ep=4", works}, 24).config) << works;

  error = only_error(layout({"parallel.dp=4", "parallel.ep=3"}, 4));
  EXPECT_EQ(error.found, "tp 1 x cp 1 x dp 4 = 4 ranks of a stage, for etp 1 x ep 3");
  EXPECT_EQ(error.fix, "set parallel.ep to 2 or 4");
  // No value of one alone helps.
  error = only_error(layout({"parallel.dp=8", "parallel.ep=3", "parallel.etp=3"}, 8));
  EXPECT_EQ(error.fix,
            "set parallel.ep to 1 and parallel.etp to 2 or 4, or parallel.etp to 1 and parallel.ep to 2 or 4");
}

TEST(Mesh, AnOrderNamesTheAxisWhosePlaceExpertsTake) {
  auto const error = only_error(layout({"parallel.tp=4", "parallel.ep=2", "parallel.order=tp-pp"}, 4));
  EXPECT_EQ(error.found, "\"tp-pp\" without dp, whose place ep = 2 takes");
  EXPECT_EQ(error.fix, "set parallel.order to \"tp-pp-dp\"");
}

TEST(Mesh, AMissingAxisTakesItsPlaceInTheDefaultOrder) {
  for (auto const& [order, fixed] : std::vector<std::pair<std::string, std::string>>{
           {"tp-pp-dp", "tp-cp-pp-dp"}, {"pp-tp", "pp-tp-cp"}, {"dp-pp", "cp-dp-pp"}}) {
    auto const error = only_error(layout({"parallel.cp=4", "parallel.order=" + order}, 4));
    EXPECT_EQ(error.fix, fmt::format("set parallel.order to \"{}\"", fixed));
  }
}

TEST(Refinement, TheExampleOfTheDesign) {
  PerAxis const sizes{.tp = 4, .dp = 4, .ep = 8};
  auto const atoms = refine(sizes, read_order("tp-cp-dp-pp").axes);
  ASSERT_TRUE(atoms);
  std::string text;
  for (auto const& atom : *atoms) {
    if (atom.size > 1) text += atom.name + "=" + std::to_string(atom.size) + " (" + names(atom.axes, " ") + ") ";
  }
  EXPECT_EQ(text, "tp=4 (tp ep) dp0=2 (dp ep) dp1=2 (dp edp) ");
}

}  // namespace
}  // namespace p3d::config::test
