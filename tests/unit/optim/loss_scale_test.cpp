// SPDX-License-Identifier: Apache-2.0
// The loss scale against traces of other scalers (make_loss_scale_reference.py).
#include <p3d/base/error.hpp>
#include <p3d/optim/loss_scale.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace p3d;

config::PrecisionOptions dynamic() {
  config::PrecisionOptions o;
  o.loss_scaling = config::LossScaling::dynamic;
  return o;
}

TEST(LossScale, FollowsOtherScalers) {
  std::ifstream in(P3D_SOURCE_DIR "/tests/unit/optim/loss_scale_reference.txt");
  std::string line;
  int traces = 0, torch = 0;
  for (; std::getline(in, line); ++traces) {
    std::istringstream words(line);
    auto o = dynamic();
    std::string rule, word;
    words >> rule >> o.loss_scale_initial >> o.loss_scale_growth >> o.loss_scale_backoff >> o.loss_scale_interval >>
        o.loss_scale_hysteresis >> o.loss_scale_floor >> word;
    ASSERT_EQ(word, "|");
    torch += rule == "torch";
    std::vector<bool> overflows;
    while (words >> word && word != "|") overflows.push_back(word == "1");
    ASSERT_GE(overflows.size(), 12u);
    optim::LossScaler scaler(o);
    std::int64_t skipped = 0;
    for (std::size_t step = 0; step < overflows.size(); ++step) {
      ASSERT_TRUE(words >> word);
      scaler.update(overflows[step]);
      skipped += overflows[step];
      ASSERT_EQ(scaler.scale(), std::strtod(word.c_str(), nullptr)) << line << "\nstep " << step;
    }
    EXPECT_EQ(scaler.state().skipped, skipped);
  }
  EXPECT_GE(traces, 80);
  EXPECT_GE(torch, 20);
}

TEST(LossScale, AtItsFloorNothingHelps) {
  auto o = dynamic();
  o.loss_scale_initial = 4;
  o.loss_scale_hysteresis = 1;
  o.loss_scale_floor = 2;
  optim::LossScaler scaler(o);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 2);
}

TEST(LossScale, FixedOrNoneSkipsNothing) {
  config::PrecisionOptions o;
  EXPECT_EQ(optim::LossScaler(o).scale(), 1);
  EXPECT_FALSE(optim::LossScaler(o).skips());
  o.loss_scaling = config::LossScaling::fixed;
  o.loss_scale = 128;
  optim::LossScaler fixed(o);
  EXPECT_FALSE(fixed.update(true));
  for (int i = 0; i < 3000; ++i) EXPECT_TRUE(fixed.update(false));
  EXPECT_EQ(fixed.scale(), 128);
}

TEST(LossScale, StateAsText) {
  optim::LossScaleState const s{0.1, 12, 1, 3};
  EXPECT_EQ(optim::to_string(s), "scale=0.1 clean_steps=12 overflows=1 skipped=3");
  EXPECT_EQ(optim::parse_loss_scale(optim::to_string(s)), s);
  for (char const* text :
       {"", "scale=1", "scale=0 clean_steps=1 overflows=0 skipped=0", "scale=inf clean_steps=1 overflows=0 skipped=0",
        "scale=1 clean_steps=-1 overflows=0 skipped=0", "scale=1 overflows=0 clean_steps=1 skipped=0"})
    EXPECT_THROW(optim::parse_loss_scale(text), base::Error) << text;
  // A scaler goes on from a state as if it had not stopped.
  auto o = dynamic();
  o.loss_scale_interval = 5;
  optim::LossScaler a(o), b(o);
  for (int i = 0; i < 40; ++i) {
    a.update(i % 7 == 3);
    b.set_state(optim::parse_loss_scale(optim::to_string(b.state())));
    b.update(i % 7 == 3);
    EXPECT_EQ(a.state(), b.state());
  }
}

// What is stored in one precision is read in another: the number of skipped steps stays, the scale does not.
TEST(LossScale, SkippedStepsOutliveTheScale) {
  using config::LossScaling;
  optim::LossScaleState const dynamic_one{1024, 12, 1, 3}, fresh{65536, 0, 0, 0}, none{1, 0, 0, 0};
  EXPECT_EQ(optim::stored_loss_scale(none, LossScaling::none), "");
  auto const full = optim::stored_loss_scale(dynamic_one, LossScaling::dynamic);
  EXPECT_EQ(full, optim::to_string(dynamic_one));
  EXPECT_EQ(optim::resumed_loss_scale(fresh, LossScaling::dynamic, full), dynamic_one);
  EXPECT_EQ(optim::resumed_loss_scale(fresh, LossScaling::dynamic, ""), fresh);
  auto const without = optim::resumed_loss_scale(none, LossScaling::none, full);
  EXPECT_EQ(without, (optim::LossScaleState{1, 0, 0, 3}));
  auto const count = optim::stored_loss_scale(without, LossScaling::none);
  EXPECT_EQ(count, "skipped=3");
  EXPECT_EQ(optim::resumed_loss_scale(none, LossScaling::fixed, count), without);
  EXPECT_EQ(optim::resumed_loss_scale(fresh, LossScaling::dynamic, count), (optim::LossScaleState{65536, 0, 0, 3}));
  for (char const* text : {"skipped=", "skipped=x", "skipped=-1", "skipped=3 ", "clean_steps=1"})
    EXPECT_THROW(optim::resumed_loss_scale(fresh, LossScaling::dynamic, text), base::Error) << text;
}

}  // namespace
