// SPDX-License-Identifier: Apache-2.0
// Fits the constants of a cluster file. All formulas are linear in what is fitted, or in its inverse, so that no search
// is needed: GEMMs by least squares of relative errors, links by their shortest and their longest transfers.
#include <p3d/plan/calibration.hpp>

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/median.hpp>
#include <p3d/plan/kernel_generation.hpp>
#include <p3d/plan/machine_time.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace p3d::plan {
namespace {

/// `value` with three digits: more would only be noise.
double rounded(double value) { return std::stod(fmt::format("{:.2e}", value)); }

double& peak_of(config::Device& device, config::Precision precision) {
  switch (precision) {
    case config::Precision::fp64: return device.fp64;
    case config::Precision::bf16: return device.bf16;
    case config::Precision::fp16: return device.fp16;
    case config::Precision::fp32: break;
  }
  return device.fp32;
}

/// The predicted seconds of samples over the measured ones.
std::vector<double> ratios(config::Cluster const& cluster, double peak, std::vector<GemmSample> const& samples) {
  std::vector<double> out;
  for (auto const& s : samples) out.push_back(gemm_seconds(cluster, {peak, s.gradient}, s.m, s.n, s.k) / s.seconds);
  return out;
}

FitError error_of(std::string what, std::vector<double> const& predicted_over_measured) {
  FitError out{std::move(what), 0, 0, predicted_over_measured.size()};
  for (double r : predicted_over_measured) {
    out.mean += std::abs(r - 1) / static_cast<double>(out.samples);
    out.worst = std::max(out.worst, std::abs(r - 1));
  }
  return out;
}

/// Steps of the all-reduce of n ranks that wait for a latency each (all_reduce_seconds).
double steps_of(double n) { return std::min(2 * (n - 1), 2 * std::ceil(std::log2(n))); }

}  // namespace

FitError fit_gemms(GemmSamples const& samples, bool sizes, config::Cluster& cluster) {
  P3D_REQUIRE(!samples.even.empty(), "a calibration times GEMMs");
  auto& g = cluster.gemm;
  auto& peak = peak_of(cluster.device, samples.precision);
  g.best = 1;
  if (sizes) g.size = 0, g.align_penalty = g.odd_penalty = g.weight_gradient = 1;
  // With a peak of 1 the formula says work (1 + size inverses): seconds = a work + b work inverses, where 1 / a is the
  // peak and b / a the size. Least squares of seconds / measured - 1.
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (auto const& s : samples.even) {
    if (s.gradient) continue;
    auto plain = cluster;
    plain.gemm.size = 0;
    double const work = gemm_seconds(plain, {1}, s.m, s.n, s.k) / s.seconds;
    double const inverses = work * (1 / s.m + 1 / s.n + 1 / s.k);
    aa += work * work, ab += work * inverses, bb += inverses * inverses;
    a1 += work, b1 += inverses;
  }
  double a = a1 / aa, b = 0;
  if (sizes) {
    double const determinant = aa * bb - ab * ab;
    if (determinant > 1e-12 * aa * bb) b = (aa * b1 - ab * a1) / determinant;
    if (b < 0) b = 0;
    a = (a1 - b * ab) / aa;
    g.size = a > 0 ? rounded(b / a) : 0;
  }
  // With the size fixed, the peak alone.
  double work2 = 0, work1 = 0;
  for (auto const& s : samples.even) {
    if (s.gradient) continue;
    double const work = gemm_seconds(cluster, {1}, s.m, s.n, s.k) / s.seconds;
    work2 += work * work, work1 += work;
  }
  peak = rounded(work2 / work1);
  if (sizes) {
    std::vector<GemmSample> gradients;
    std::copy_if(samples.even.begin(), samples.even.end(), std::back_inserter(gradients),
                 [](auto const& s) { return s.gradient; });
    if (!gradients.empty())
      g.weight_gradient = std::clamp(rounded(base::median(ratios(cluster, peak, gradients))), 0.05, 2.0);
    auto const penalty = [&](std::vector<GemmSample> const& awkward) {
      return awkward.empty() ? 1.0 : std::clamp(rounded(1 / base::median(ratios(cluster, peak, awkward))), 1.0, 100.0);
    };
    // Penalties of 1 while they are measured: both samples see the formula without them.
    double const unaligned = penalty(samples.unaligned), odd = penalty(samples.odd);
    g.align_penalty = unaligned, g.odd_penalty = std::max(odd, unaligned);
  }
  return error_of(fmt::format("GEMMs, {}", base::to_string(samples.precision)), ratios(cluster, peak, samples.even));
}

config::Level fit_level(LevelSamples const& s) {
  P3D_REQUIRE(s.all_reduce.size() >= 2 && s.messages.size() >= 2 && s.ranks >= 2, "a calibration times links");
  auto const n = static_cast<double>(s.ranks);
  config::Level level{.name = s.name, .size = s.size, .share = {}};
  // The shortest sums and messages are nothing but latency.
  level.latency = rounded(std::max(s.all_reduce.front().seconds / steps_of(n), s.messages.front().seconds));
  // Bytes of sums, their bytes per second, and whether bytes take enough of the time to tell their rate.
  struct Rate {
    double bytes, rate;
    bool counts;
  };
  std::vector<Rate> rates;
  for (auto const& t : s.all_reduce)
    if (double const rest = t.seconds - steps_of(n) * level.latency; rest > 0)
      rates.push_back({t.bytes, 2 * (n - 1) / n * t.bytes / rest, rest > 0.3 * t.seconds});
  double message = s.messages.back().bytes / s.messages.back().seconds;
  if (double const rest = s.messages.back().seconds - level.latency; rest > 0) message = s.messages.back().bytes / rest;
  level.bandwidth = message;
  for (auto const& r : rates)
    if (r.counts) level.bandwidth = std::max(level.bandwidth, r.rate);
  for (auto const& r : rates)
    level.share.emplace_back(r.bytes, std::clamp(rounded(r.rate / level.bandwidth), 1e-6, 1.0));
  level.message_share = std::clamp(rounded(message / level.bandwidth), 1e-6, 1.0);
  level.bandwidth = rounded(level.bandwidth);
  return level;
}

namespace {

/// [device] apart from the peaks, and [attention].
void fit_device(MachineSamples const& s, Calibration& out) {
  auto& d = out.cluster.device;
  d.memory = s.memory;
  d.sharers = rounded(s.sharers);
  d.bandwidth = rounded(s.stream.bytes / s.stream.seconds);
  P3D_REQUIRE(s.layer.size() >= 2, "a calibration times kernels of two lengths");
  auto const& shortest = s.layer.front();
  auto const& longest = s.layer.back();
  // seconds / bytes = (1 + half_rate / each) / rate: two equations.
  double const at_short = shortest.seconds / shortest.bytes, at_long = longest.seconds / longest.bytes;
  double const slope = (at_short - at_long) / (1 / shortest.each - 1 / longest.each);
  double const flat = std::max(at_long - slope / longest.each, 0.1 * at_long);
  d.half_rate = slope > 0 ? rounded(slope / flat) : 0;
  double const per_byte = slope > 0 ? flat : at_long;
  d.bandwidth_share = std::clamp(rounded(1 / per_byte / d.bandwidth), 1e-4, 1.0);
  std::vector<double> layer;
  for (auto const& m : s.layer) layer.push_back(memory_seconds(out.cluster, m.bytes, m.each) / m.seconds);
  out.errors.push_back(error_of("kernels of a layer", layer));
  if (s.permute.seconds > 0)
    d.permute_share = std::clamp(rounded(s.permute.bytes / s.permute.seconds / d.bandwidth), 1e-4, 1.0);
  d.launch = rounded(s.launch);
  auto const& kernels = kernels_of(base::to_string(out.cluster.kernels), "kernels");
  double const peak = out.cluster.peak(s.gemms.front().precision);
  if (s.attention_seconds > 0)
    out.cluster.attention = std::clamp(rounded(s.attention_operations * (1 + kernels.attention_backward) /
                                               (s.attention_seconds * peak * kernels.attention)),
                                       1e-4, 1.0);
}

}  // namespace

Calibration calibrate(MachineSamples const& s) {
  P3D_REQUIRE(!s.gemms.empty() && !s.levels.empty(), "a calibration times GEMMs and links");
  Calibration out;
  auto& c = out.cluster;
  c.name = s.name;
  c.device.name = s.device;
  c.kernels = s.host ? config::PlannedKernels::host : config::PlannedKernels::flash;
  c.gemm.units = s.units;
  if (s.host) c.gemm.tile_rows = c.gemm.tile_cols = 1;
  for (auto const& samples : s.gemms) out.errors.push_back(fit_gemms(samples, &samples == &s.gemms.front(), c));
  fit_device(s, out);
  for (auto const& level : s.levels) {
    c.levels.push_back(fit_level(level));
    auto const& fitted = c.levels.back();
    config::Cluster alone = c;
    alone.levels = {fitted};
    alone.levels.front().size = 0;
    std::vector<double> sums, messages;
    for (auto const& t : level.all_reduce)
      sums.push_back(all_reduce_seconds(alone, {level.ranks, 1}, t.bytes) / t.seconds);
    for (auto const& t : level.messages) messages.push_back(message_seconds(alone, 1, t.bytes) / t.seconds);
    out.errors.push_back(error_of("sums, " + level.name, sums));
    out.errors.push_back(error_of("messages, " + level.name, messages));
  }
  c.jitter = std::clamp(rounded(s.jitter), 0.0, 1.0);

  auto const note = [&](std::string key, std::string text) { out.notes.emplace_back(std::move(key), std::move(text)); };
  auto const type = base::to_string(s.gemms.front().precision);
  for (auto const& samples : s.gemms)
    note(fmt::format("device.{}", base::to_string(samples.precision)),
         fmt::format("the rate of GEMMs without end, from {}", samples.even.size()));
  note("device.sharers", "ranks on a node over its cores");
  note("device.memory", "what the system says, over the ranks that share it");
  note("device.bandwidth", "sums of two long arrays");
  note("device.bandwidth_share", "norms, activations and residual sums of p3d");
  note("device.permute_share", s.permute.seconds > 0 ? "rows of experts" : "not measured");
  note("device.half_rate", "the same kernels on short arrays");
  note("device.launch", "a kernel that does nothing");
  note("gemm.best", "the peak above is what GEMMs reach");
  note("gemm.size", fmt::format("{} GEMMs in {}", s.gemms.front().even.size(), type));
  note("gemm.tile_rows", s.host ? "cores have no tiles" : "assumed");
  note("gemm.tile_cols", s.host ? "cores have no tiles" : "assumed");
  note("gemm.units", s.host ? "the rank as a whole" : "multiprocessors of the device");
  note("attention.best", fmt::format("forward and backward in {}", type));
  note("jitter.sigma", "the same work again and again");
  return out;
}

}  // namespace p3d::plan
