// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/machine_time.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace p3d::plan {
namespace {

/// The share of a level's bandwidth that collectives of so many bytes reach. Below the first point the time is that of
/// the first; above the last the share stays.
double share_at(config::Level const& level, double bytes) {
  auto const& curve = level.share;
  if (curve.empty()) return 1;
  if (bytes <= curve.front().first) return curve.front().second * std::max(bytes, 1.0) / curve.front().first;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    auto const [low, at_low] = curve[i - 1];
    auto const [high, at_high] = curve[i];
    if (bytes > high) continue;
    return at_low + (at_high - at_low) * std::log(bytes / low) / std::log(high / low);
  }
  return curve.back().second;
}

/// The links that a ring over a group crosses, as one.
struct Way {
  double bandwidth = std::numeric_limits<double>::infinity();  ///< bytes per second of a rank
  double latency = 0;
};

/// The levels that the group crosses, from the closest: a level counts where it holds more members together than the
/// one before.
Way way(config::Cluster const& cluster, RankGroup group, double bytes, bool ring = true) {
  Way out;
  std::int64_t inside = 1;  // members of the group that a group of the level before holds
  for (auto const& level : cluster.levels) {
    bool const outermost = &level == &cluster.levels.back();
    auto members = outermost ? group.size : std::clamp<std::int64_t>(level.size / group.stride, 1, group.size);
    members = std::max(members, inside);
    if (members > inside) {
      double const wider = ring ? static_cast<double>(inside) : 1.0;
      out.bandwidth = std::min(out.bandwidth, level.bandwidth * share_at(level, bytes) * wider);
      out.latency = std::max(out.latency, level.latency);
    }
    inside = members;
    if (inside >= group.size) break;
  }
  return out;
}

}  // namespace

double gemm_seconds(config::Cluster const& cluster, GemmType type, double m, double n, double k, double count) {
  m = std::floor(m), n = std::floor(n), k = std::floor(k);
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  auto const& g = cluster.gemm;
  double const tiles =
      count * std::ceil(m / static_cast<double>(g.tile_rows)) * std::ceil(n / static_cast<double>(g.tile_cols));
  double const w = tiles / static_cast<double>(g.units);
  double const waves = 0.5 + 0.5 * w / std::ceil(w);
  double const rate = type.peak * g.best / (1 + g.size * (1 / m + 1 / n + 1 / k)) * waves;
  auto const multiples = [&](double of) {
    return std::fmod(m, of) == 0 && std::fmod(n, of) == 0 && std::fmod(k, of) == 0;
  };
  double const align = static_cast<double>(g.align) * (type.fp8 ? 2 : 1);
  double const penalty = !multiples(2) ? g.odd_penalty : multiples(align) ? 1 : g.align_penalty;
  return 2 * count * m * n * k / rate * penalty / (type.gradient ? g.weight_gradient : 1);
}

double memory_seconds(config::Cluster const& cluster, double bytes, double each) {
  if (bytes <= 0) return 0;
  return bytes / (cluster.device.bandwidth * cluster.device.bandwidth_share) *
         (1 + cluster.device.half_rate / std::max(each, 1.0));
}

double all_reduce_seconds(config::Cluster const& cluster, RankGroup group, double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0;
  auto const [bandwidth, latency] = way(cluster, group, bytes);
  auto const n = static_cast<double>(group.size);
  return std::min(2 * (n - 1), 2 * std::ceil(std::log2(n))) * latency + 2 * (n - 1) / n * bytes / bandwidth;
}

double gather_seconds(config::Cluster const& cluster, RankGroup group, double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0;
  auto const [bandwidth, latency] = way(cluster, group, bytes);
  auto const n = static_cast<double>(group.size);
  return std::ceil(std::log2(n)) * latency + (n - 1) / n * bytes / bandwidth;
}

double ring_step_seconds(config::Cluster const& cluster, RankGroup group, double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0;
  auto const [bandwidth, latency] = way(cluster, group, bytes);
  return latency + bytes / bandwidth;
}

double all_to_all_seconds(config::Cluster const& cluster, RankGroup group, double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0;
  auto const n = static_cast<double>(group.size);
  auto const [bandwidth, latency] = way(cluster, group, bytes / n, false);
  return (n - 1) * latency + (n - 1) / n * bytes / bandwidth;
}

double message_seconds(config::Cluster const& cluster, std::int64_t distance, double bytes) {
  if (bytes <= 0) return 0;
  auto const& level = cluster.level(distance);
  return level.latency + bytes / (level.bandwidth * level.message_share);
}

}  // namespace p3d::plan
