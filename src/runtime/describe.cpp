// The text of `p3d --check` and of a run's start.

#include <p3d/runtime/run_plan.hpp>

#include <p3d/base/text.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace p3d::runtime {

namespace {

/// "[0 1] [2 3] ... [6 7]": at most four groups of at most sixteen ranks in full.
std::string groups_text(std::vector<std::vector<int>> const& groups) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i == 3 && groups.size() > 4) {
      parts.emplace_back("...");
      i = groups.size() - 1;
    }
    auto const& g = groups[i];
    if (g.size() <= 16) {
      parts.push_back(fmt::format("[{}]", fmt::join(g, " ")));
    } else {
      parts.push_back(fmt::format("[{} {} ... {}]", g[0], g[1], g.back()));
    }
  }
  return base::join(parts, " ");
}

std::string mesh_text(layout::RankGrid const& grid) {
  auto text = fmt::format("Mesh: {} ranks, order", grid.num_ranks());
  for (auto a : grid.order()) text += fmt::format(" {}={}", layout::name(a), grid.sizes()[a]);
  text += " (fastest first)\n";
  for (auto a : {layout::Axis::tp, layout::Axis::pp, layout::Axis::dp}) {
    auto const groups = grid.groups(a);
    text += fmt::format("  {} groups ({} of {}): {}\n", layout::name(a), groups.size(), grid.sizes()[a], groups_text(groups));
  }
  return text;
}

std::string stages_text(config::Config const& c, RunPlan const& plan) {
  std::vector<int> layers;
  for (int s = 0; s < plan.stages.num_stages(); ++s) layers.push_back(plan.stages.num_layers(s));
  auto text = fmt::format("Pipeline: {} stage(s), schedule {}, {} microbatch(es) of {} sequence(s) a rank and step\n",
                          plan.stages.num_stages(), config::to_string(c.pipeline.schedule), c.batch.microbatches, c.batch.micro);
  text += fmt::format("  layers by stage: {} (sum {})\n", fmt::join(layers, " + "), plan.stages.num_layers());
  text += fmt::format("  activation slots by stage: {}\n", fmt::join(plan.training.num_slots, " "));
  return text;
}

}  // namespace

std::string describe(config::Config const& c, RunPlan const& plan) {
  auto const flops = plan::flops_per_token(c);
  auto text = mesh_text(plan.grid) + stages_text(c, plan);
  text += fmt::format("Model: {} parameters ({}), {} FLOPs per token forward + backward ({} per step of {} tokens)\n",
                      plan.table.num_parameters(), base::human_count(static_cast<double>(plan.table.num_parameters())),
                      base::human_count(flops.model), base::human_count(plan::model_flops_per_step(c)),
                      c.batch.global * c.model.seq_len);
  std::vector<plan::MemoryPrediction> memory;
  for (int r = 0; r < c.parallel.pp; ++r) {
    auto m = plan::predict_state_memory(c, plan.table, plan.stages, r);
    m.activations = static_cast<std::int64_t>(activation_bytes(c, plan, r));
    memory.push_back(m);
  }
  text += "Memory of a rank, by pipeline coordinate (activations with scratch):\n" + plan::format(memory);
  return text;
}

}  // namespace p3d::runtime
