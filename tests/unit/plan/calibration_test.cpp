// SPDX-License-Identifier: Apache-2.0
// A machine of known constants is "measured" by the formulas themselves; the fit must find the constants again.
#include <p3d/plan/calibration.hpp>

#include <p3d/plan/machine_time.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {
using namespace p3d;

config::Cluster known() {
  config::Cluster c;
  c.name = "made up";
  c.kernels = config::PlannedKernels::host;
  c.device = {.name = "core",
              .fp64 = 5e10,
              .fp32 = 1e11,
              .memory = 4e9,
              .bandwidth = 2e10,
              .bandwidth_share = 0.6,
              .permute_share = 0.3,
              .half_rate = 2e5,
              .sharers = 2,
              .launch = 1e-7};
  c.gemm = {.best = 1,
            .size = 25,
            .tile_rows = 1,
            .tile_cols = 1,
            .units = 1,
            .align = 8,
            .align_penalty = 1.25,
            .odd_penalty = 1.5,
            .weight_gradient = 0.8};
  c.attention = 0.4;
  c.levels = {{.name = "node", .size = 4, .bandwidth = 8e9, .latency = 2e-6, .message_share = 0.5, .share = {}},
              {.name = "network", .size = 0, .bandwidth = 1e9, .latency = 1e-5, .message_share = 0.75, .share = {}}};
  c.jitter = 0.02;
  return c;
}

/// The samples that a machine with these constants gives.
plan::MachineSamples measured(config::Cluster const& c) {
  plan::MachineSamples s;
  s.name = c.name, s.device = c.device.name;
  s.sharers = c.device.sharers, s.memory = c.device.memory;
  for (auto precision : {config::Precision::fp32, config::Precision::fp64}) {
    plan::GemmSamples gemms{.precision = precision, .even = {}, .unaligned = {}, .odd = {}};
    auto const timed = [&](double m, double n, double k, bool gradient) {
      return plan::GemmSample{m, n, k, gradient, plan::gemm_seconds(c, {c.peak(precision), gradient}, m, n, k)};
    };
    for (double m : {128.0, 512.0, 2048.0})
      for (double n : {256.0, 1024.0})
        for (bool gradient : {false, true}) gemms.even.push_back(timed(m, n, 512, gradient));
    gemms.unaligned = {timed(512, 514, 514, false)};
    gemms.odd = {timed(512, 513, 513, false)};
    s.gemms.push_back(gemms);
  }
  s.stream = {3e8, 1e8, 3e8 / c.device.bandwidth};
  for (double each : {5e5, 2e6, 8e6}) s.layer.push_back({10 * each, each, plan::memory_seconds(c, 10 * each, each)});
  s.permute = {1e7, 2e6, 1e7 / (c.device.bandwidth * c.device.permute_share)};
  s.attention_operations = 1e9;
  s.attention_seconds = 2.8 * 1e9 / (c.device.fp32 * c.attention);  // backward takes 1.8 times as long as forward
  s.launch = c.device.launch;
  s.jitter = c.jitter;
  for (auto const& level : c.levels) {
    auto alone = c;
    alone.levels = {level};
    alone.levels.front().size = 0;
    plan::LevelSamples l{.name = level.name, .size = level.size, .ranks = 4, .all_reduce = {}, .messages = {}};
    for (double bytes = 16; bytes < 1e8; bytes *= 16) {
      l.all_reduce.push_back({bytes, plan::all_reduce_seconds(alone, {4, 1}, bytes)});
      l.messages.push_back({bytes, plan::message_seconds(alone, 1, bytes)});
    }
    s.levels.push_back(l);
  }
  return s;
}

TEST(Calibration, FindsTheConstantsAgain) {
  auto const wanted = known();
  auto const result = plan::calibrate(measured(wanted));
  for (auto const& name : config::constants(wanted)) {
    auto const want = *config::constant(wanted, name), got = config::constant(result.cluster, name).value_or(-1);
    if (name == "device.fp16" || name == "device.bf16" || name == "device.fp8") continue;
    EXPECT_NEAR(got, want, 0.01 * want) << name;
  }
  for (std::size_t l = 0; l < wanted.levels.size(); ++l) {
    EXPECT_EQ(result.cluster.levels[l].size, wanted.levels[l].size);
    EXPECT_EQ(result.cluster.levels[l].name, wanted.levels[l].name);
  }
  EXPECT_EQ(result.cluster.kernels, config::PlannedKernels::host);
  for (auto const& e : result.errors) {
    EXPECT_GT(e.samples, 0U) << e.what;
    EXPECT_LT(e.mean, 0.02) << e.what;
    EXPECT_LE(e.mean, e.worst) << e.what;
  }
}

TEST(Calibration, NamesTheErrorOfWhatTheFormulaCannotSay) {
  auto samples = measured(known());
  samples.gemms[0].even[0].seconds *= 2;
  auto const result = plan::calibrate(samples);
  EXPECT_EQ(result.errors[0].what, "GEMMs, fp32");
  EXPECT_GT(result.errors[0].worst, 0.3);
}

TEST(Calibration, NoNegativeSizesOnOddMachines) {
  // Short arrays and small GEMMs are quicker than long and large ones: everything fits into a cache.
  auto samples = measured(known());
  for (auto& s : samples.gemms[0].even) s.seconds *= 1 + s.operations() / 1e9;
  for (auto& s : samples.layer) s.seconds *= 1 + s.each / 1e6;
  auto const& c = plan::calibrate(samples).cluster;
  EXPECT_GE(c.gemm.size, 0);
  EXPECT_EQ(c.device.half_rate, 0);
  EXPECT_TRUE(config::parse_cluster(config::cluster_toml(c), "c").cluster.has_value());
}

TEST(Calibration, TheFileReadsBack) {
  auto const result = plan::calibrate(measured(known()));
  auto const text = config::cluster_toml(result.cluster, result.notes);
  auto const back = config::parse_cluster(text, "here.toml");
  ASSERT_TRUE(back.cluster.has_value()) << config::format(back.errors) << text;
  EXPECT_EQ(config::cluster_toml(*back.cluster, result.notes), text);
  for (auto const& name : config::constants(result.cluster))
    EXPECT_EQ(config::constant(*back.cluster, name), config::constant(result.cluster, name)) << name;
  EXPECT_EQ(back.cluster->kernels, config::PlannedKernels::host);
  EXPECT_EQ(back.cluster->levels[1].share, result.cluster.levels[1].share);
}

TEST(Calibration, WantsMeasurements) { EXPECT_THROW(plan::calibrate({}), std::exception); }

}  // namespace
