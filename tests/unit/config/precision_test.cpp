// SPDX-License-Identifier: Apache-2.0
// run.precision and [precision]: what follows from what, and what does not go together.

#include "support.hpp"

#include <p3d/base/precisions.hpp>

#include <string>

namespace p3d::config::test {
namespace {

struct Refusal {
  char const* keys;  ///< lines of [precision]
  char const* precision;
  char const* key;    ///< that the error names
  char const* found;  ///< part of it
  char const* fix;
};

/// Line 2 has run.precision, lines from 4 on the keys.
std::string input(char const* precision, std::string const& keys) {
  return std::string("[run]\nprecision = \"") + precision + "\"\n[precision]\n" + keys +
         "[data]\nformat = \"synthetic\"\n";
}

class PrecisionRule : public testing::TestWithParam<Refusal> {};

TEST_P(PrecisionRule, RefusesWithPlaceAndFix) {
  auto const& r = GetParam();
  auto const error = only_error(parse(input(r.precision, r.keys), {}, 0));
  EXPECT_EQ(error.key, r.key) << r.keys;
  expect_contains(error.found, r.found);
  expect_contains(error.where, "t.toml:4:");
  expect_contains(error.fix, r.fix);
}

#if P3D_16BIT
INSTANTIATE_TEST_SUITE_P(
    Combinations, PrecisionRule,
    testing::Values(
        Refusal{"loss_scale = \"dynamic\"\n", "bf16", "precision.loss_scale", "which has the exponents of fp32",
                "leave precision.loss_scale out"},
        Refusal{"loss_scale = 128.0\n", "fp32", "precision.loss_scale", "\"fp32\"", "leave precision.loss_scale out"},
        Refusal{"loss_scale = 2\n", "fp64", "precision.loss_scale", "\"fp64\"", "leave precision.loss_scale out"},
        Refusal{"loss_scale_interval = 5\n", "bf16", "precision.loss_scale_interval", "\"none\"", "leave it out"},
        Refusal{"loss_scale_growth = 4.0\nloss_scale = 8\n", "fp16", "precision.loss_scale_growth", "loss_scale 8",
                "precision.loss_scale = \"dynamic\""},
        Refusal{"loss_scale_floor = 100.0\nloss_scale_initial = 4.0\n", "fp16", "precision.loss_scale_initial",
                "initial 4, floor 100", "raise the first one"},
        Refusal{"stochastic_rounding = true\n", "fp32", "precision.stochastic_rounding",
                "its weights are not rounded after an update", "run.precision = \"bf16\""},
        Refusal{"stochastic_rounding = true\n", "fp16", "precision.stochastic_rounding", "8 times finer steps",
                "run.precision = \"bf16\""},
        Refusal{"moments = \"bf16\"\n", "fp64", "precision.moments", "\"bf16\"", "leave precision.moments out"},
        Refusal{"moments = \"fp64\"\n", "bf16", "precision.moments", "\"fp64\"", "leave precision.moments out"},
        Refusal{"gradients = \"bf16\"\n", "fp32", "precision.gradients", "\"bf16\"", "leave precision.gradients out"},
        Refusal{"gradients = \"bf16\"\n", "fp16", "precision.gradients", "\"bf16\"", "leave precision.gradients out"},
        Refusal{"reduction = \"fp32\"\ngradients = \"bf16\"\n", "bf16", "precision.reduction", "\"fp32\"",
                "leave precision.reduction out"},
        Refusal{"reduction = \"fp64\"\n", "fp32", "precision.reduction", "\"fp64\"", "leave precision.reduction out"},
        Refusal{"pipeline = \"fp32\"\n", "bf16", "precision.pipeline", "\"fp32\"", "leave precision.pipeline out"},
        Refusal{"pipeline = \"fp16\"\n", "fp32", "precision.pipeline", "\"fp16\"", "leave precision.pipeline out"},
        Refusal{"moments = \"bf16\"\n[optimizer]\nbeta2 = 0.999\n", "bf16", "precision.moments", "beta2 = 0.999",
                "lower optimizer.beta2"},
        Refusal{"loss_scale = 1e-40\n", "fp16", "precision.loss_scale", "1e-40", "at least"}));

TEST(Precision, EpsIsNoZero) {
  std::string const eps = "[optimizer]\neps = 1e-50\n";
  for (char const* narrow : {"fp32", "bf16", "fp16"}) {
    auto const error = only_error(parse(input(narrow, eps), {}, 0));
    EXPECT_EQ(error.key, "optimizer.eps");
    expect_contains(error.found, "it would be 0");
    expect_contains(error.fix, "raise optimizer.eps");
  }
  EXPECT_TRUE(parse(input("fp64", eps), {}, 0).config);
}

TEST(Precision, DefaultsFollowTheRun) {
  struct Expected {
    char const* run;
    Precision moments, pipeline;
    LossScaling scaling;
  };
  for (auto const& e : {Expected{"fp64", Precision::fp64, Precision::fp64, LossScaling::none},
                        Expected{"fp32", Precision::fp32, Precision::fp32, LossScaling::none},
                        Expected{"bf16", Precision::fp32, Precision::bf16, LossScaling::none},
                        Expected{"fp16", Precision::fp32, Precision::fp16, LossScaling::dynamic}}) {
    auto const result = parse(input(e.run, ""), {}, 0);
    ASSERT_TRUE(result.config) << format(result.errors);
    EXPECT_EQ(result.config->precision.moments, e.moments) << e.run;
    EXPECT_EQ(result.config->precision.reduction, e.moments) << e.run;
    EXPECT_EQ(result.config->precision.pipeline, e.pipeline) << e.run;
    EXPECT_EQ(result.config->precision.loss_scaling, e.scaling) << e.run;
    // The resolved input names every key, and is an input.
    auto const again = parse(canonical_toml(*result.config), {}, 0);
    ASSERT_TRUE(again.config) << format(again.errors);
    EXPECT_EQ(again.config->precision, result.config->precision);
  }
}

TEST(Precision, SumsOf16BitsAreOurOwn) {
  std::string const mpi = "[comm]\nallreduce = \"mpi\"\n[run]\ndeterministic = false\n";
  auto const error =
      only_error(parse(mpi + "precision = \"bf16\"\n[parallel]\ntp = 2\n[data]\nformat = \"synthetic\"\n", {}, 2));
  EXPECT_EQ(error.key, "comm.allreduce");
  expect_contains(error.found, "MPI has no sum of bf16");
  auto const divided =
      only_error(parse(mpi + "precision = \"bf16\"\n[parallel]\npp = 2\n[data]\nformat = \"synthetic\"\n",
                       {"pipeline.vocab_parallel=true"}, 2));
  expect_contains(divided.found, "MPI has no sum of bf16");
  for (auto const* axis : {"dp", "cp"}) {
    auto const narrow = only_error(parse(mpi + "[precision]\nreduction = \"bf16\"\n",
                                         {"data.format=synthetic", std::string("parallel.") + axis + "=2"}, 2));
    expect_contains(narrow.where, std::string("parallel.") + axis);
  }
  auto const alone = parse(mpi + "precision = \"bf16\"\n[data]\nformat = \"synthetic\"\n", {}, 2);
  EXPECT_TRUE(alone.config) << format(alone.errors);
}
#else
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PrecisionRule);
TEST(Precision, ThisBuildLacks16Bits) {
  for (char const* name : {"bf16", "fp16"}) {
    auto const error =
        only_error(parse(std::string("[run]\nprecision = \"") + name + "\"\n[data]\nformat = \"synthetic\"\n", {}, 0));
    EXPECT_EQ(error.key, "run.precision");
    expect_contains(error.where, "t.toml:2:13");
    expect_contains(error.fix, "-DP3D_16BIT=ON");
  }
}
#endif

TEST(FusedAttention, WantsALibraryThatIsThereAndSixteenBits) {
  auto const result = parse("[linalg]\nattention = \"fused\"\n[data]\nformat = \"synthetic\"\n", {}, 0);
  auto const error = only_error(result);
  EXPECT_EQ(error.key, "linalg.attention");
  expect_contains(error.where, "t.toml:2:13");
  expect_contains(error.expected, has_fused_attention() ? "16 bits" : "this build of p3d has no library");
}

#if P3D_16BIT
TEST(FusedAttention, DrawsNoDropout) {
  auto const result =
      parse("[run]\nprecision = \"bf16\"\n[linalg]\nattention = \"fused\"\n[data]\nformat = \"synthetic\"\n",
            {"model.dropout=0.1"}, 0);
  auto const error = only_error(result);
  expect_contains(error.expected, has_fused_attention() ? "draws no dropout" : "this build of p3d has no library");
}
#endif

TEST(HostGemm, WantsALibraryThatIsThere) {
  auto const result = parse("[linalg]\nhost = \"onednn\"\n[data]\nformat = \"synthetic\"\n", {}, 0);
  if (has_onednn()) {
    ASSERT_TRUE(result.config) << format(result.errors);
    EXPECT_EQ(result.config->linalg.host, HostGemm::onednn);
    return;
  }
  auto const error = only_error(result);
  EXPECT_EQ(error.key, "linalg.host");
  expect_contains(error.where, "t.toml:2:8");
  expect_contains(error.fix, "libdnnl-dev");
}

}  // namespace
}  // namespace p3d::config::test
