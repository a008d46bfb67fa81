// SPDX-License-Identifier: Apache-2.0
// A prediction in words, and what a better machine would gain.
#include <p3d/plan/step_time.hpp>

#include <p3d/base/enum_names.hpp>
#include <p3d/base/text.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/run_plan.hpp>
#include <p3d/schedule/registry.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace p3d::plan {

double StepTime::seconds() const {
  double sum = 0;
  for (double p : parts) sum += p;
  return sum;
}

StepTime predict_step(config::Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels) {
  return StepPredictor(cluster, kernels).predict(config);
}

namespace {

/// The stages of the schedule. Most schedules have one on each rank, and need not be made to know them.
layout::StageMap stages_of(config::Config const& c) {
  auto const* generator = schedule::find_generator(c.pipeline.schedule);
  bool const one_each = generator != nullptr && generator->stages_per_rank == 1 && c.pipeline.virtual_stages <= 1;
  return one_each ? layout::make_stage_map(c) : plan_few_microbatches(c).stages;
}

}  // namespace

double operations_of_rank(config::Config const& c) {
  auto const stages = stages_of(c);
  double remade = 0;
  for (int s = 0; s < stages.num_stages() && c.memory.recompute != config::Recompute::automatic; ++s)
    remade +=
        recompute_flops_per_token(c, layout::stage_recompute(c.memory, stages, s), stages.layers(s).begin, Keys::all);
  return (flops_per_token(c) + remade) * static_cast<double>(c.batch.global * c.model.seq_len) / c.num_ranks();
}

double predicted_bytes(config::Config const& config, KernelGeneration const& kernels) {
  auto const gpu = Platform{.gpu = true, .device_form = true, .host_reaches_views = false};
  auto const plan = make_run_plan(config, kernels.host ? Platform{} : gpu);
  double most = 0;
  for (auto const& m : plan.memory) most = std::max(most, static_cast<double>(m.total()));
  return most;
}

std::string describe(config::Config const& c, config::Cluster const& cluster, StepTime const& time, double bytes) {
  double const seconds = time.seconds();
  auto const tokens = static_cast<double>(c.batch.global * c.model.seq_len);
  double const ceiling = cluster.peak(config::operand_precision(c));
  auto const share = [&](double operations) { return ceiling > 0 ? 100 * operations / (seconds * ceiling) : 0; };
  std::string text =
      fmt::format("Step on {} ranks of {}: {:.4g} s ({:.4g} to {:.4g}), {} tokens/s, MFU {:.1f} %, HFU {:.1f} %\n",
                  c.num_ranks(), cluster.name, seconds, time.low, time.high, base::human_count(tokens / seconds),
                  share(model_flops_per_step(c) / c.num_ranks()), share(operations_of_rank(c)));
  text += fmt::format("Memory of the rank that has most: {} of {}{}\n", base::human_bytes(bytes),
                      base::human_bytes(cluster.device.memory), bytes > cluster.device.memory ? ": too much" : "");
  if (cluster.rank_hour > 0)
    text += fmt::format("Price: {:.4g} for 1000 steps\n", cluster.rank_hour * c.num_ranks() * seconds / 3.6);
  for (auto part : base::values_of<TimePart>())
    if (double const s = time[part]; s > 5e-5 * seconds)
      text += fmt::format("  {:<14} {:>10.4g} s {:>6.1f} %\n", base::to_string(part), s, 100 * s / seconds);
  if (auto const rest = not_predicted(c); !rest.empty()) text += fmt::format("Not in these seconds: {}\n", rest);
  return text;
}

std::string not_predicted(config::Config const& c) {
  std::vector<std::string> parts;
  auto const& m = c.memory;
  for (auto const& [key, place] :
       {std::pair("offload_optimizer", m.offload_optimizer), std::pair("offload_parameters", m.offload_parameters),
        std::pair("offload_activations", m.offload_activations)})
    if (place != config::OffloadTo::none)
      parts.push_back(fmt::format("the copies of memory.{} = \"{}\"", key, to_string(place)));
  if (c.batch.variable) parts.push_back("that samples of batch.variable are shorter than model.seq_len");
  return base::join(parts);
}

std::string sensitivity(config::Config const& c, config::Cluster const& cluster, KernelGeneration const& kernels) {
  double const now = predict_step(c, cluster, kernels).seconds();
  std::vector<std::pair<double, std::string>> gains;
  auto const raise = [&](std::string name, auto const& change) {
    auto better = cluster;
    change(better);
    gains.emplace_back(1 - predict_step(c, better, kernels).seconds() / now, std::move(name));
  };
  raise("peak of GEMMs", [](config::Cluster& b) {
    for (auto* peak : {&b.device.fp64, &b.device.fp32, &b.device.fp16, &b.device.bf16, &b.device.fp8}) *peak *= 1.01;
  });
  raise("rate of attention", [](config::Cluster& b) { b.attention *= 1.01; });
  raise("bandwidth of the memory", [](config::Cluster& b) { b.device.bandwidth *= 1.01; });
  raise("launches", [](config::Cluster& b) { b.device.launch /= 1.01; });
  for (std::size_t l = 0; l < cluster.levels.size(); ++l) {
    auto const& name = cluster.levels[l].name;
    raise("bandwidth of " + name, [l](config::Cluster& b) { b.levels[l].bandwidth *= 1.01; });
    raise("latency of " + name, [l](config::Cluster& b) { b.levels[l].latency /= 1.01; });
  }
  std::stable_sort(gains.begin(), gains.end(), [](auto const& a, auto const& b) { return a.first > b.first; });
  std::vector<std::string> parts;
  for (auto const& [gain, name] : gains)
    if (gain > 1e-5 && parts.size() < 5) parts.push_back(fmt::format("{} {:.2f} %", name, 100 * gain));
  return fmt::format("With one of these 1 % better the step gets shorter by: {}\n", base::join(parts));
}

}  // namespace p3d::plan
