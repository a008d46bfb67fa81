// SPDX-License-Identifier: Apache-2.0
// The products that the MFU is measured against are the model's: their work is that of the FLOP formula, whatever the
// layout.

#include <p3d/plan/model_cost.hpp>
#include <p3d/report/ceiling.hpp>

#include <support/tiny.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using namespace p3d;
using test::config_of;

double work(std::vector<report::Product> const& products) {
  double sum = 0.0;
  for (auto const& p : products) sum += p.work;
  return sum;
}

struct Case {
  char const* preset;
  int tp, pp;
};

TEST(ModelProducts, DoTheWorkOfTheFlopFormula) {
  for (auto const& c : {Case{"gpt2-124m", 1, 1}, Case{"llama-124m", 1, 1}, Case{"llama-124m", 4, 1},
                        Case{"gpt2-tiny", 2, 4}, Case{"llama-tiny", 2, 2}}) {
    auto const config = config_of(
        {std::string("model.preset=") + c.preset, "model.vocab_size=50256", "batch.micro=2",
         "parallel.tp=" + std::to_string(c.tp), "parallel.pp=" + std::to_string(c.pp), "data.format=synthetic"},
        c.tp * c.pp);
    double const tokens = 2.0 * static_cast<double>(config.model.seq_len);
    double const expected = 6.0 * static_cast<double>(plan::matmul_weights(config)) * tokens / (c.tp * c.pp);
    auto const products = report::model_products(config);
    EXPECT_NEAR(work(products) / expected, 1.0, 1e-12) << c.preset << " tp " << c.tp << " pp " << c.pp;
    EXPECT_EQ(products.size(), 15u);
  }
}

// The MFU counts the model's operations, the HFU those of recomputation too.
TEST(DescribeMfu, CountsRecomputationApart) {
  auto const config = config_of({"model.preset=gpt2-tiny", "data.format=synthetic"}, 1);
  double const model = plan::model_flops_per_step(config);
  auto const text = report::describe_mfu(config, 1, 2.0, model, model / 2);
  EXPECT_TRUE(text.starts_with("MFU 0.50 (HFU 0.75, recomputation counted): a rank does")) << text;
  EXPECT_TRUE(report::describe_mfu(config, 1, 2.0, model).starts_with("MFU 0.50: a rank does"));
}

TEST(ModelProducts, ShrinkButKeepTheirWork) {
  auto const config = config_of({"model.preset=gpt2-124m", "batch.micro=4", "data.format=synthetic"}, 1);
  auto const full = report::model_products(config), small = report::model_products(config, 1e9);
  EXPECT_DOUBLE_EQ(work(full), work(small));
  ASSERT_EQ(full.size(), small.size());
  for (std::size_t i = 0; i < full.size(); ++i) {
    EXPECT_GT(full[i].flops(), 1e9) << full[i].name;
    EXPECT_LE(small[i].flops(), 1e9) << full[i].name;
    EXPECT_GE(small[i].flops(), 0.5e9) << full[i].name;
  }
}

}  // namespace
