// SPDX-License-Identifier: Apache-2.0
// The text of `p3d --check` and of a run's start. Each function below writes one part of it, from the input and the
// plan alone: nothing has to run. A part is "" where it does not concern the input.

#include <p3d/report/describe.hpp>

#include <p3d/base/text.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/traffic.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "bubble.hpp"

namespace p3d::report {

namespace {

/// The texts one after the other; of more than `most` only the first half and the last few.
std::string shortened(std::vector<std::string> const& parts, std::size_t most, std::string const& separator) {
  if (parts.size() <= most) return base::join(parts, separator);
  std::vector<std::string> kept(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(most / 2));
  kept.emplace_back("...");
  auto const last = std::max<std::size_t>(1, most / 4);
  kept.insert(kept.end(), parts.end() - static_cast<std::ptrdiff_t>(last), parts.end());
  return base::join(kept, separator);
}

/// A sum such as "9 + 9 + 8 + 6". Of many stages, consecutive ones with equal numbers share a term: "2 x 36 + 1 x 64".
std::string sum_text(std::vector<int> const& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t next = i + 1;
    while (numbers.size() > 16 && next < numbers.size() && numbers[next] == numbers[i]) ++next;
    parts.push_back(next - i == 1 ? fmt::format("{}", numbers[i]) : fmt::format("{} x {}", numbers[i], next - i));
    i = next;
  }
  return shortened(parts, 16, " + ");
}

/// The mesh and its groups.
std::string mesh_text(layout::RankGrid const& grid) {
  auto text = fmt::format("Mesh: {}, order", base::counted(grid.num_ranks(), "rank"));
  for (auto a : grid.order()) text += fmt::format(" {}={}", layout::name(a), grid.sizes()[a]);
  text += " (neighbouring ranks first)\n";
  for (auto a : config::shown_axes(grid.sizes()).list()) {
    if (a != layout::Axis::cp || grid.sizes().cp > 1) text += groups_line(grid, a);
  }
  return text;
}

/// The pipeline: stages, schedule, layers, slots, and the bubble by simulation where that is quick.
std::string stages_text(config::Config const& c, engine::RunPlan const& plan, bool explains) {
  std::vector<int> layers;
  for (int s = 0; s < plan.stages.num_stages(); ++s) layers.push_back(plan.stages.num_layers(s));
  std::vector<std::string> slots;
  for (int n : plan.training->num_slots) slots.push_back(fmt::format("{}", n));
  auto text = fmt::format("Pipeline: {}, schedule {}, {} of {} a replica and step\n",
                          base::counted(plan.stages.num_stages(), "stage"), c.pipeline.schedule,
                          base::counted(c.batch.microbatches, "microbatch"), base::counted(c.batch.micro, "sequence"));
  if (!plan.schedule_note.empty()) text += fmt::format("  {}\n", plan.schedule_note);
  if (!plan.flush_note.empty()) text += fmt::format("  {}\n", plan.flush_note);
  if (c.mixes_delays())
    text += fmt::format(
        "  gradients are late by {} updates (pipeline.delays), on which the answer depends{}\n", delays_text(c),
        c.pipeline.schedule == "pipedream" ? ": give them to a run with other stages that is to have the same answer"
                                           : "");
  text += fmt::format("  layers by stage: {} (sum {})\n", sum_text(layers), plan.stages.num_layers());
  if (!plan.stages.stages_own_vocabulary()) {
    int const blocks = c.vocabulary_parts();
    text += fmt::format("  vocabulary: {} of {} rows of the embedding and of the output layer on each of {} ranks\n",
                        layout::padded_shard(c.model.vocab_size, blocks, 0).size(), c.model.vocab_size, blocks);
  }
  text += fmt::format("  activation slots by stage: {}\n", shortened(slots, 16, " "));
  std::size_t actions = 0;
  for (auto const& list : plan.training->ranks) actions += list.size();
  // Larger programs do without the simulation, so that --check answers quickly.
  constexpr std::size_t quick = 5'000'000;
  if (c.parallel.pp > 1 && actions < quick) {
    auto const costs = plan::model_costs(c, plan.stages);
    auto const simulated = plan::simulate(plan.training, costs, plan.training.execution());
    double const bubble = plan.stream ? plan::planned_bubble(plan, costs) : simulated.bubble();
    text +=
        fmt::format("  proved to run to its end ({} actions); bubble {:.1f} % by simulation", actions, 100.0 * bubble);
    bool const large = bubble >= large_bubble && !plan.stream;
    text += large && !explains ? " (p3d --check says why)\n" : " with the FLOPs of the stages\n";
    if (large && explains) text += bubble_lines(c, plan, simulated);
  }
  return text;
}

/// The operations that backward recomputes, and their cost; "" without recomputation.
std::string recompute_text(config::Config const& c, engine::RunPlan const& plan) {
  auto const& m = c.memory;
  if (m.recompute == config::Recompute::none) return "";
  std::string text = "Recomputation: ";
  if (m.recompute == config::Recompute::list) {
    std::vector<std::string> ops;
    if (m.recompute_ops.norm) ops.emplace_back("norm");
    if (m.recompute_ops.activation) ops.emplace_back("activation");
    if (m.recompute_ops.attention) ops.emplace_back("attention");
    text += ops.empty() ? "nothing" : fmt::format("outputs of {}", base::join(ops));
    if (m.recompute_ops.rotary) text += "; rotary has nothing to discard, it works in place";
  } else {
    int full = 0;
    for (auto const& sets : plan.activations)
      for (auto const& layer : sets.recompute.layers) full += layer.full ? 1 : 0;
    text += fmt::format("{} of {} but their inputs", full, base::counted(plan.stages.num_layers(), "layer"));
    if (m.recompute_group > 1) text += fmt::format(", in groups of {}", m.recompute_group);
    if (!m.recompute_communication) text += ", and but the all-reduces over tp of attention";
    if (m.share_saved_inputs) text += "; inputs are divided over tp";
    if (m.recompute_microbatches_kept > 0)
      text += fmt::format("; {} in flight on each stage keep everything",
                          base::counted(m.recompute_microbatches_kept, "microbatch"));
  }
  double const share = plan::recompute_flops_per_step(c, plan) / plan::model_flops_per_step(c);
  text += fmt::format(". {:.1f} % more FLOPs\n", 100.0 * share);
  std::vector<std::string> sets;
  bool split = false;
  for (auto const& a : plan.activations) {
    sets.push_back(fmt::format("{}", a.rebuilt));
    split = split || a.rebuilt > 0;
  }
  if (split) text += fmt::format("  sets that live from I to W by stage: {}\n", shortened(sets, 16, " "));
  return text;
}

/// The rows and traffic of sequence parallelism, on the ranks that send most.
std::string sequence_text(config::Config const& c, engine::RunPlan const& plan) {
  if (!c.parallel.sequence) return "";
  auto const division = layout::context_division(c);
  int busiest = 0;
  for (int k = 1; k < division.cp; ++k)
    // Ranks may have different numbers of tokens; the text is about those with the most.
    if (division.share_of_place(k).size() > division.share_of_place(busiest).size()) busiest = k;
  auto const tokens = c.batch.micro * division.share_of_place(busiest).size(),
             most = layout::even_share(tokens, c.parallel.tp, c.parallel.tp - 1).size();
  double bytes = 0.0;
  for (int r = 0; r < c.parallel.pp; ++r)
    bytes = std::max(bytes, plan::tensor_traffic(c, plan.stages, plan.activations, plan.training, r, busiest).total());
  return fmt::format(
      "Sequence parallelism: between GEMMs a rank has up to {} of {} tokens; {} a step and rank over tp\n", most,
      tokens, base::human_bytes(bytes / c.parallel.tp));
}

/// The exchange of context parallelism, such as "all-to-all of 2, ring of 4"; with the order of tokens where there are
/// several places.
std::string exchange_text(layout::ContextDivision const& d) {
  if (d.ring() == 1) return "all-to-all";
  auto const* around = d.gather ? "all-gather" : "ring";
  auto const how = d.all_to_all == 1 ? std::string(around)
                                     : fmt::format("all-to-all of {}, {} of {}", d.all_to_all, around, d.ring());
  return fmt::format("{}, {}", to_string(d.order), how);
}

/// The windows of the model, by the layers that have them: "1024 in 24, 4096 in 4 of 32 layers".
std::string windows_text(config::Model const& m) {
  std::map<std::int64_t, std::int64_t> layers;
  for (std::int64_t l = 0; l < m.layers; ++l) ++layers[m.window_of(l)];
  std::vector<std::string> parts;
  for (auto const& [window, count] : layers)
    if (window > 0) parts.push_back(fmt::format("{} in {}", window, count));
  if (parts.empty()) return "";
  return fmt::format("Attention window: {} of {}\n", shortened(parts, 8, ", "), base::counted(m.layers, "layer"));
}

/// The division and traffic of context parallelism, on the ranks that send most.
std::string context_text(config::Config const& c, engine::RunPlan const& plan) {
  if (c.parallel.cp == 1) return "";
  auto const division = layout::context_division(c);
  auto least = division.seq_len, most = std::int64_t{0};
  for (int k = 0; k < division.cp; ++k) {
    auto const n = division.share_of_place(k).size();
    least = std::min(least, n);
    most = std::max(most, n);
  }
  std::set<std::int64_t> windows;
  for (std::int64_t l = 0; l < c.model.layers; ++l) windows.insert(c.model.window_of(l));
  double imbalance = 1.0, step = 0.0;
  for (auto window : windows) imbalance = std::max(imbalance, layout::context_imbalance(division, window));
  for (int r = 0; r < c.parallel.pp; ++r)
    step = std::max(step, plan::context_traffic_per_step(c, plan.stages, plan.activations, plan.training, r));
  auto const sent = plan::context_traffic(c);
  return fmt::format(
             "Context parallelism: {} tokens over cp {}, {}: {} a rank, attention's work at most {:.2f} of the mean\n"
             "  a rank sends {} a layer and microbatch forward, {} backward; {} a step{}\n",
             c.model.seq_len, c.parallel.cp, exchange_text(division),
             least == most ? base::counted(most, "token") : fmt::format("{} to {} tokens", least, most), imbalance,
             base::human_bytes(sent.forward), base::human_bytes(sent.backward), base::human_bytes(step),
             !c.model.mla.on()  ? ""
             : division.latents ? "; latents travel, keys and values are made of them"
                                : "; keys and values travel, which are fewer bytes than latents") +
         context_wait_line(c, {});
}

/// The number of forwards that interleave with a backward; "" where none may.
std::string pairs_text(schedule::ValidProgram const& training) {
  if (!training.execution().pairs) return "";
  std::int64_t forwards = 0, pairs = 0;
  for (auto const& actions : training->ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) {
      forwards += actions[i].op == schedule::Op::forward ? 1 : 0;
      pairs += schedule::begins_pair(actions, i) ? 1 : 0;
    }
  return fmt::format("  {} of {} forwards interleave with a backward\n", pairs, forwards);
}

/// The experts of the layers, and their traffic.
std::string experts_text(config::Config const& c, engine::RunPlan const& plan) {
  auto const& m = c.model.moe;
  if (!m.on()) return "";
  auto text = fmt::format("Experts: {} in {} of {}, {} for each token\n", m.experts, c.model.moe_layers(),
                          base::counted(c.model.layers, "layer"), m.top_k);
  if (layout::expert_exchange_axes(c.parallel).empty()) return text;
  double step = 0.0;
  for (std::size_t r = 0; r < plan.memory.size(); ++r)
    step = std::max(
        step, plan::expert_traffic_per_step(c, plan.stages, plan.activations, plan.training, static_cast<int>(r)));
  auto const sent = plan::expert_traffic(c);
  bool const gathers = m.dispatch == config::Dispatch::gather;
  text += fmt::format(
      "  a rank has {} (ep {}, etp {}), and room for {}\n"
      "  balanced, a rank sends {} a layer and microbatch forward, {} backward; {} a step\n",
      base::counted(m.experts / c.parallel.ep, c.parallel.etp > 1 ? "divided expert" : "expert"), c.parallel.ep,
      c.parallel.etp, gathers ? "all rows" : fmt::format("{:g} times the rows of balanced ones", m.buffer_factor),
      base::human_bytes(sent.forward), base::human_bytes(sent.backward), base::human_bytes(step));
  return text + pairs_text(plan.training);
}

/// The table of memory. Of many coordinates it has the first and the last few, and the one with the most memory.
std::string memory_text(engine::RunPlan const& plan) {
  auto const& memory = plan.memory;
  std::vector<std::string> lines;
  auto const table = plan::format(memory);
  for (std::size_t at = 0; at < table.size();) {
    auto const end = table.find('\n', at);
    lines.push_back(table.substr(at, end - at));
    at = end + 1;
  }
  constexpr std::size_t most = 16;
  auto text = "Memory of a rank, by pipeline coordinate:\n" + shortened(lines, most, "\n") + "\n";
  if (lines.size() > most) {
    auto const top = std::max_element(memory.begin(), memory.end(),
                                      [](auto const& a, auto const& b) { return a.total() < b.total(); });
    text += fmt::format("  the most: {} at coordinate {}\n", base::human_bytes(static_cast<double>(top->total())),
                        top - memory.begin());
  }
  std::int64_t copy = 0, offloaded = 0, activations = 0;
  for (auto const& m : memory) {
    copy = std::max(copy, m.checkpoint_copy);
    offloaded = std::max(offloaded, m.offloaded);
    activations = std::max(activations, m.offloaded_activations);
  }
  if (offloaded > 0)
    text += fmt::format("  beside it {} of offloaded state (memory.offload_*)\n",
                        base::human_bytes(static_cast<double>(offloaded)));
  if (activations > 0)
    text += fmt::format("  beside it {} of disk for offloaded activations (memory.offload_activations)\n",
                        base::human_bytes(static_cast<double>(activations)));
  if (copy > 0) {
    text += fmt::format("  beside it up to {} of host memory for the copy of a checkpoint (checkpoint.async)\n",
                        base::human_bytes(static_cast<double>(copy)));
  }
  return text;
}

}  // namespace

std::string grade_memory(double predicted, double before, double now, int ranks) {
  constexpr double mib_of_libraries = 100.0;
  double const found = now - before, more = (found - predicted) / ranks;
  auto const ratio = fmt::format("found / predicted {:.3f}", found / predicted);
  auto verdict = ratio;
  if (more > 0.0) {
    // MPI and the BLAS take buffers while they work, which no plan of p3d can know. Up to a usual amount they explain a
    // difference.
    bool const within = more <= mib_of_libraries * 1024 * 1024;
    verdict = fmt::format("{} a rank more, {} the {:.0f} MiB that MPI and BLAS may take while they work",
                          base::human_bytes(more), within ? "within" : "beyond", mib_of_libraries);
    if (!within) verdict += "; " + ratio;
  }
  return fmt::format("Memory of all ranks: {} predicted, {} found beside the {} that libraries took before ({})\n",
                     base::human_bytes(predicted), base::human_bytes(found), base::human_bytes(before), verdict);
}

std::string groups_line(layout::RankGrid const& grid, layout::Axis axis) {
  int const count = grid.num_groups(axis);
  std::vector<std::string> parts;
  for (int k = 0; k < count; ++k) {
    if (count > 4 && k == 2) {
      parts.emplace_back("...");
      k = count - 1;
    }
    auto const g = grid.group(axis, grid.first_of_group(axis, k));
    parts.push_back(g.size() <= 8 ? fmt::format("[{}]", fmt::join(g, " "))
                                  : fmt::format("[{} {} ... {}]", g[0], g[1], g.back()));
  }
  return fmt::format("  {} groups ({} of {}): {}\n", layout::name(axis), count, grid.sizes()[axis],
                     base::join(parts, " "));
}

std::string context_wait_line(config::Config const& c, layout::MachineRates const& rates) {
  if (c.parallel.cp == 1) return "";
  auto const division = layout::context_division(c);
  layout::ContextWait sum;
  double work = 0;
  for (std::int64_t l = 0; l < c.model.layers; ++l) {
    auto const layer = layout::context_work(c, l, rates);
    auto const wait = layout::context_wait(division, layer, rates);
    sum.forward += wait.forward;
    sum.backward += wait.backward;
    work += layer.forward;
  }
  double const ms = 1e3 / static_cast<double>(c.model.layers);
  return fmt::format(
      "  attention waits {:.3g} ms a layer and microbatch forward, {:.3g} ms backward, beside {:.3g} and {:.3g} ms of "
      "work (computed with {:.3g} FLOP/s, {:.3g} bytes/s, {:.3g} s latency)\n",
      ms * sum.forward, ms * sum.backward, ms * work, 2 * ms * work, rates.flops, rates.bandwidth, rates.latency);
}

namespace {

/// The blocks of multi-token prediction; "" without any.
std::string prediction_text(config::Model const& m) {
  if (!m.mtp.on()) return "";
  auto const last = m.all_layers() - 1;
  auto const numbers =
      m.mtp.depth == 1 ? fmt::format("layer {}", last) : fmt::format("layers {} to {}", m.layers, last);
  auto const idle = std::max<std::int64_t>(0, m.mtp.depth - m.seq_len + 1);
  return fmt::format("Multi-token prediction: {} ({}) on the last stage, loss weight {}; in training alone{}\n",
                     base::counted(m.mtp.depth, "block"), numbers, m.mtp.loss_weight,
                     idle > 0 ? fmt::format("; {} of them look further than samples of {} reach", idle,
                                            base::counted(m.seq_len, "token"))
                              : "");
}

/// Says what travels of gradients that are compressed.
std::string compression_text(config::Config const& c, engine::RunPlan const& plan) {
  auto const traffic = plan::compressed_traffic(c, plan.table, plan.stages);
  std::string each = "8 bits";
  if (c.comm.compress == config::Compress::topk)
    each = fmt::format("the {:g} % of each line that changed most", 100 * c.comm.topk);
  if (c.comm.compress == config::Compress::powersgd) each = fmt::format("factors of rank {}", c.comm.powersgd_rank);
  auto const where = c.parallel.dp == 1 ? std::string("one replica has all of them")
                                        : fmt::format("{} a step over dp in place of {}",
                                                      base::human_bytes(static_cast<double>(traffic.compressed)),
                                                      base::human_bytes(static_cast<double>(traffic.plain)));
  return fmt::format(
      "Gradients of {} are compressed to {}: {}\n  losses depend on comm.workers, and not on parallel.dp\n",
      base::counted(c.comm.workers, "worker"), each, where);
}

/// The keys that let losses depend on the layout, and the part of the layout that they then depend on.
std::string wires_text(config::Config const& c, engine::RunPlan const& plan) {
  std::string text;
  if (c.compresses()) text += compression_text(c, plan);
  std::vector<std::string> replicas;
  for (auto axis : layout::token_axes.list())
    if (c.parallel[axis] > 1) replicas.emplace_back(config::row_of(axis).key);
  if (plan::reduces_narrow(c))
    text += fmt::format("Gradients travel in {}: losses depend on {}\n", to_string(c.precision.reduction),
                        base::join(replicas, " and "));
  if (c.parallel.pp > 1 && c.precision.pipeline != c.run.precision)
    text += fmt::format("Activations travel between stages in {}: losses depend on parallel.pp\n",
                        to_string(c.precision.pipeline));
  return text;
}

}  // namespace

std::string describe(config::Config const& c, engine::RunPlan const& plan, bool explains) {
  auto const flops = plan::flops_per_token(c);
  auto text = mesh_text(plan.grid) + stages_text(c, plan, explains);
  auto const active = static_cast<double>(plan::active_parameters(c, plan.table));
  text += fmt::format(
      "Model: {} parameters ({}{})\n  {} FLOPs per token, forward and backward; {} per step of {}{} tokens\n",
      plan.table.num_parameters(), base::human_count(static_cast<double>(plan.table.num_parameters())),
      c.model.moe.on() ? fmt::format(", {} of them for each token", base::human_count(active)) : "",
      base::human_count(flops), base::human_count(plan::model_flops_per_step(c)), c.batch.variable ? "up to " : "",
      c.batch.global * c.model.seq_len);
  return text + prediction_text(c.model) + experts_text(c, plan) + windows_text(c.model) + context_text(c, plan) +
         sequence_text(c, plan) + recompute_text(c, plan) + wires_text(c, plan) + memory_text(plan);
}

}  // namespace p3d::report
