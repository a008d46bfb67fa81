// SPDX-License-Identifier: Apache-2.0
#include "plan_output.hpp"

#include "words.hpp"

#include <p3d/base/csv.hpp>
#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/step_time.hpp>

#include <fmt/format.h>

namespace p3d::app {
namespace {

double tokens(config::Config const& c) { return static_cast<double>(c.batch.global * c.model.seq_len); }

/// Model FLOPs over what the ranks could do in that time, in percent.
double utilization(plan::PlannedLayout const& l, config::Cluster const& cluster) {
  double const peak = cluster.peak(l.config.run.precision);
  if (peak <= 0) return 0;
  return 100 * plan::model_flops_per_step(l.config) / l.config.num_ranks() / (l.time.seconds() * peak);
}

}  // namespace

std::string layout_table(std::vector<plan::PlannedLayout> const& layouts, config::Cluster const& cluster) {
  std::string text = fmt::format("{:>3} {:>10} {:>21} {:>10} {:>6} {:>11}  {}\n", "", "s/step", "interval", "tokens/s",
                                 "MFU %", "memory", "layout");
  int number = 0;
  for (auto const& l : layouts) {
    double const seconds = l.time.seconds();
    text += fmt::format("{:>3} {:>10.4g} {:>21} {:>10} {:>6.1f} {:>11}  {}\n", ++number, seconds,
                        fmt::format("{:.4g} to {:.4g}", l.time.low, l.time.high),
                        base::human_count(tokens(l.config) / seconds), utilization(l, cluster),
                        base::human_bytes(l.bytes), plan::layout_of(l.config));
  }
  return text;
}

std::string scaling_table(std::vector<plan::PlannedLayout> const& layouts, config::Cluster const& cluster) {
  std::string text = fmt::format("{:>7} {:>10} {:>10} {:>6} {:>10} {:>11}  {}\n", "ranks", "s/step", "tokens/s",
                                 "MFU %", "per rank %", "memory", "layout");
  auto const speed = [](plan::PlannedLayout const& l) {
    return tokens(l.config) / l.time.seconds() / l.config.num_ranks();
  };
  for (auto const& l : layouts)
    text +=
        fmt::format("{:>7} {:>10.4g} {:>10} {:>6.1f} {:>10.1f} {:>11}  {}\n", l.config.num_ranks(), l.time.seconds(),
                    base::human_count(tokens(l.config) / l.time.seconds()), utilization(l, cluster),
                    100 * speed(l) / speed(layouts.front()), base::human_bytes(l.bytes), plan::layout_of(l.config));
  return text;
}

std::string layout_csv(std::vector<plan::PlannedLayout> const& layouts, config::Cluster const& cluster) {
  std::vector<std::string> header{"cluster", "ranks"};
  for (auto a : config::key_axes.list()) header.push_back(fmt::format("parallel.{}", config::name(a)));
  for (char const* key : {"parallel.sequence", "batch.micro", "batch.global", "pipeline.schedule",
                          "pipeline.virtual_stages", "pipeline.vocab_parallel", "memory.recompute", "memory.shard",
                          "seconds", "low", "high", "tokens_per_second", "mfu", "bytes"})
    header.emplace_back(key);
  for (auto part : base::values_of<plan::TimePart>()) header.push_back(std::string(base::to_string(part)) + "_s");
  std::string text = base::csv_row(header);
  for (auto const& l : layouts) {
    auto const& c = l.config;
    auto const& p = c.parallel;
    std::vector<std::string> row{cluster.name};
    row.push_back(fmt::to_string(c.num_ranks()));
    for (auto a : config::key_axes.list()) row.push_back(fmt::to_string(p[a]));
    row.emplace_back(p.sequence ? "true" : "false");
    for (std::int64_t n : {c.batch.micro, c.batch.global}) row.push_back(fmt::to_string(n));
    row.push_back(c.pipeline.schedule);
    row.push_back(fmt::to_string(c.pipeline.virtual_stages));
    row.emplace_back(c.pipeline.vocab_parallel ? "true" : "false");
    row.emplace_back(c.memory.recompute == config::Recompute::list ? "list" : base::to_string(c.memory.recompute));
    row.emplace_back(base::to_string(c.memory.shard));
    for (double x : {l.time.seconds(), l.time.low, l.time.high, tokens(c) / l.time.seconds(),
                     utilization(l, cluster) / 100, l.bytes})
      row.push_back(fmt::format("{:.8g}", x));
    for (auto part : base::values_of<plan::TimePart>()) row.push_back(fmt::format("{:.8g}", l.time[part]));
    text += base::csv_row(row);
  }
  return text;
}

config::Cluster changed(config::Cluster cluster, std::string const& change) {
  auto const equals = change.find('=');
  auto const name = change.substr(0, equals);
  auto const now = config::constant(cluster, name);
  auto const all = config::constants(cluster);
  if (!now) {
    auto const near = base::nearest(name, all);
    throw wrong_words("a constant of the cluster: " + base::join(all), "--what-if " + change,
                      near.empty() ? "name one of these" : fmt::format("did you mean {}?", near));
  }
  auto value = equals == std::string::npos ? "" : change.substr(equals + 1);
  bool const times = !value.empty() && value.back() == 'x';
  if (times) value.pop_back();
  auto const number = read_number(value, 1e-12, 1e30);
  if (!number)
    throw wrong_words("a factor, 2x, or a value, 5e10", "--what-if " + change,
                      fmt::format("write {}=2x; it is {:g} now", name, *now));
  if (auto const range = config::set_constant(cluster, name, times ? *now * *number : *number); !range.empty())
    throw wrong_words(range, "--what-if " + change, fmt::format("it is {:g} now", *now));
  return cluster;
}

}  // namespace p3d::app
