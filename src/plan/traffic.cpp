// SPDX-License-Identifier: Apache-2.0
// Counts the collectives of a step by walking through the actions of a rank, then multiplies by the bytes of one. An
// example: tp = 4 without parallel.sequence, a stage of 6 layers: a forward has 12 all-reduces of N x hidden elements,
// each of which makes the group send 2 (4 - 1) times these bytes.
#include <p3d/plan/traffic.hpp>

#include <p3d/config/config.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/schedule/query.hpp>

namespace p3d::plan {

namespace {

/// Numbers of collectives, each of tokens x hidden elements where nothing else is said.
struct Counts {
  double sums = 0;                             ///< sums over tp
  double gathers = 0;                          ///< all-gathers of divided tokens
  double latent_sums = 0, latent_gathers = 0;  ///< sums and gathers of tokens x model.mla's latents
  double norms = 0;   ///< sums over tp of norms of all heads (model.qk_norm = "full"), of 2 numbers a token
  double shares = 0;  ///< all-gathers of inputs that are kept divided (memory.share_saved_inputs)
};

/// Exchanges over tp in front of the linears of a layer: each is a gather under sequence parallelism, and backward a
/// sum. Latent attention exchanges latents, and its input only where queries come from it.
struct Inputs {
  double whole = 2, latent = 0;
  /// Gathers of latents in the input part of a split backward, and in its weight part.
  double input_latent = 0, weight_latent = 0;
  explicit Inputs(config::Config const& c)
      : whole(c.model.mla.on() && c.model.mla.q_lora_rank > 0 ? 1 : 2), latent(c.model.mla.on() ? 1 : 0) {
    // Where latents travel over cp, attention's backward reads them, and adds the weight gradient of kv_up.
    bool const travel = layout::context_division(c).latents;
    input_latent = travel ? latent : 0;
    weight_latent = travel && c.model.mla.q_lora_rank == 0 ? 0 : latent;
  }
};

/// Collectives that a backward of a stage repeats because it recomputes layers.
Counts remade(layout::StageRecompute const& r, bool norms_after, Inputs const& inputs) {
  Counts out;
  for (int l = 0; l < r.num_layers(); ++l) {
    if (!r.layer(l).full) continue;
    out.sums += r.remakes_branches(l, norms_after) ? 2 : r.keeps_sums ? 0 : 1;
    out.gathers += inputs.whole;
    out.latent_gathers += inputs.latent;
    out.norms += 1;
    out.shares += r.input(l) == layout::KeptInput::shared ? 1 : 0;
  }
  return out;
}

/// Adds the collectives of the blocks of multi-token prediction in an action of the last stage: those of a layer, of an
/// embedding, which has `look_up` of each, and of a head. All of their backward comes with the input part.
void add_prediction(config::Mtp const& mtp, double look_up, Inputs const& inputs, schedule::Op op, Counts& all,
                    double& losses) {
  auto const blocks = static_cast<double>(mtp.depth);
  if (op == schedule::Op::forward) {
    all.sums += (2 + look_up) * blocks;
    all.gathers += (inputs.whole + 1) * blocks;
    all.latent_gathers += inputs.latent * blocks;
    all.norms += blocks;
    losses += blocks;
  }
  if (!schedule::makes_input_gradient(op) || mtp.loss_weight == 0) return;
  all.sums += (inputs.whole + 1) * blocks;
  all.latent_sums += inputs.latent * blocks;
  all.gathers += (2 + inputs.whole + 1 + look_up) * blocks;
  all.latent_gathers += inputs.latent * blocks;
  all.norms += blocks;
}

}  // namespace

TensorTraffic tensor_traffic(config::Config const& config, layout::StageMap const& stages,
                             std::vector<layout::StageActivations> const& activations, schedule::Program const& program,
                             int pipeline_rank, int context_rank) {
  using schedule::Op;
  Counts all;
  Inputs const inputs(config);
  double losses = 0;
  double const look_up = config.replicates_embedding() ? 0 : 1;  // collectives of an embedding
  for (auto const& a : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    all.sums += a.op == Op::embed_forward || a.op == Op::head_backward ? 1 : 0;
    all.gathers += schedule::is_vocabulary(a.op) && a.op != Op::embed_forward ? 1 : 0;
    if (!schedule::is_compute(a.op)) continue;
    double const layers = stages.num_layers(a.stage);
    double const first = stages.has_embedding(a.stage) ? look_up : 0, last = stages.has_head(a.stage) ? 1 : 0;
    if (a.op == Op::forward) {
      all.sums += 2 * layers + first;
      all.gathers += inputs.whole * layers + last;
      all.latent_gathers += inputs.latent * layers;
      all.norms += layers;
      losses += last;
    }
    if (schedule::makes_input_gradient(a.op)) {
      all.sums += inputs.whole * layers + last;
      all.latent_sums += inputs.latent * layers;
      all.latent_gathers += (schedule::makes_weight_gradient(a.op) ? inputs.latent : inputs.input_latent) * layers;
      all.gathers += 2 * layers;
      all.norms += layers;
      auto const& r = activations[static_cast<std::size_t>(a.stage)].recompute;
      if (a.slot >= r.slots_kept) {
        auto const more = remade(r, config.model.norms_after(), inputs);
        all.sums += more.sums;
        all.gathers += more.gathers;
        all.latent_gathers += more.latent_gathers;
        all.norms += more.norms;
        all.shares += more.shares;
      }
    }
    if (schedule::makes_weight_gradient(a.op)) {
      all.gathers += inputs.whole * layers + first + last;
    }
    if (a.op == Op::backward_weight) {
      all.gathers += 2 * layers;
      all.latent_gathers += inputs.weight_latent * layers;
    }
    if (stages.is_last(a.stage)) add_prediction(config.model.mtp, look_up, inputs, a.op, all, losses);
  }
  auto const here = layout::context_division(config).share_of_place(context_rank).size();
  auto const tokens = static_cast<double>(config.batch.micro * here);
  auto const types = type_bytes(config);
  double const others = config.parallel.tp - 1;
  double const each = others * tokens * static_cast<double>(config.model.hidden * types.storage);
  double const latent = others * tokens * static_cast<double>(config.model.mla.latent() * types.storage);
  TensorTraffic out;
  // The loss of a token: its largest logit, and two sums.
  out.all_reduce = 2 * others * losses * 3 * tokens * static_cast<double>(types.master);
  if (config.model.qk_norm == config::QkNorm::full)
    out.all_reduce += 2 * others * all.norms * 2 * tokens * static_cast<double>(types.master);
  out.all_gather = all.shares * each;
  if (config.parallel.sequence) {
    out.reduce_scatter = all.sums * each + all.latent_sums * latent;
    out.all_gather += all.gathers * each + all.latent_gathers * latent;
  } else {
    out.all_reduce += 2 * (all.sums * each + all.latent_sums * latent);
  }
  return out;
}

ContextTraffic context_traffic(config::Config const& config) {
  auto const division = layout::context_division(config);
  auto const elements = layout::context_traffic(division, layout::context_widths(config));
  auto const types = type_bytes(config);
  auto const storage = static_cast<double>(types.storage), sums = static_cast<double>(types.master);
  auto const micro = static_cast<double>(config.batch.micro);
  return {micro * storage * elements.forward,
          micro * (storage * (elements.backward - elements.sums) + sums * elements.sums),
          micro * storage * elements.again};
}

double context_traffic_per_step(config::Config const& config, layout::StageMap const& stages,
                                std::vector<layout::StageActivations> const& activations,
                                schedule::Program const& program, int pipeline_rank) {
  double forward = 0, backward = 0, again = 0;  // numbers of layers
  for (auto const& a : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    auto const layers = static_cast<double>(layers_in_training(config, stages, a.stage).size());
    if (a.op == schedule::Op::forward) forward += layers;
    if (!schedule::makes_input_gradient(a.op)) continue;
    backward += config.model.mtp.loss_weight > 0 ? layers : stages.num_layers(a.stage);
    auto const& r = activations[static_cast<std::size_t>(a.stage)].recompute;
    if (a.slot < r.slots_kept) continue;
    for (int l = 0; l < r.num_layers(); ++l) {
      forward += r.layer(l).full ? 1 : 0;
      again += r.layer(l).attention ? 1 : 0;
    }
  }
  auto const each = context_traffic(config);
  return forward * each.forward + backward * each.backward + again * each.again;
}

ExpertTraffic expert_traffic(config::Config const& config) {
  auto const& m = config.model;
  auto const& p = config.parallel;
  double const ranks = static_cast<double>(p.ep) * p.etp;
  if (!m.moe.on() || ranks == 1) return {};
  auto const types = type_bytes(config);
  auto const sharing = static_cast<double>(p.product(config::stage_axes.minus(config::Axis::dp)));  // a sample
  double const tokens = static_cast<double>(config.batch.micro * m.seq_len) / sharing;
  if (m.moe.dispatch == config::Dispatch::gather) {
    auto const top_k = static_cast<double>(m.moe.top_k), each = (ranks - 1) * tokens;
    double const row = each * static_cast<double>(m.hidden) * static_cast<double>(types.storage);
    double const gates = each * top_k * static_cast<double>(types.master);
    double const choices = (ranks - 1) * (tokens * top_k + 1) * sizeof(std::int32_t);
    return {choices + 2 * row + gates, 2 * row + gates, choices + row + gates, row};
  }
  double const rows = (ranks - 1) / ranks * p.etp * tokens * static_cast<double>(m.moe.top_k);
  double const row = rows * static_cast<double>(m.hidden) * static_cast<double>(types.storage);
  double const gates = rows * static_cast<double>(types.master);
  double const counts = (ranks - 1) * static_cast<double>(m.moe.experts) * sizeof(std::int64_t);
  return {counts + 2 * row + gates, 2 * row + gates, counts + row + gates, row};
}

double remade_of_experts(layout::StageRecompute const& recompute, int l, bool norms_after, ExpertTraffic const& each) {
  if (!recompute.layer(l).full) return 0;
  return recompute.remakes_branches(l, norms_after) ? each.forward : each.again;
}

double expert_traffic_per_step(config::Config const& config, layout::StageMap const& stages,
                               std::vector<layout::StageActivations> const& activations,
                               schedule::Program const& program, int pipeline_rank) {
  auto const each = expert_traffic(config);
  double sum = 0;
  for (auto const& a : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    if (a.op != schedule::Op::forward && !schedule::makes_input_gradient(a.op)) continue;
    auto const layers = layers_in_training(config, stages, a.stage);
    auto const& r = activations[static_cast<std::size_t>(a.stage)].recompute;
    for (auto l = layers.begin; l < layers.end; ++l) {
      if (!config.model.has_experts(l)) continue;
      if (a.op == schedule::Op::forward) {
        sum += each.forward;
        continue;
      }
      bool const predicts = l - layers.begin >= r.num_layers();  // a layer of multi-token prediction
      if (predicts && config.model.mtp.loss_weight == 0) continue;
      sum += each.backward;
      if (!predicts && a.slot >= r.slots_kept)
        sum += remade_of_experts(r, static_cast<int>(l - layers.begin), config.model.norms_after(), each);
    }
  }
  return sum;
}

CompressedTraffic compressed_traffic(config::Config const& c, layout::ParamTable const& table,
                                     layout::StageMap const& stages) {
  CompressedTraffic out;
  // Groups along dp have the same sizes, but that tp may pad the last one's rows.
  auto const groups = c.parallel.product(config::sample_axes);
  for (int s = 0; s < stages.num_stages(); ++s) {
    layout::StageParams const params(table, stages, s, c.parallel,
                                     layout::PerAxis::only(layout::Axis::pp, stages.pipeline_rank(s)));
    out.compressed += groups * stage_compression(c, params).traffic();
    for (auto const& item : params.items())
      if (item.spec->trained)
        out.plain += groups * (c.parallel.dp - 1) * item.size() * type_bytes(c).gradient * (c.memory.divides() ? 1 : 2);
  }
  return out;
}

ExpertTraffic expert_wait(config::Config const& config, layout::MachineRates const& rates) {
  auto const sent = expert_traffic(config);
  if (sent.forward == 0) return {};
  double const start = (config.parallel.ep * config.parallel.etp - 1) * rates.latency;
  return {4 * start + sent.forward / rates.bandwidth, 3 * start + sent.backward / rates.bandwidth,
          3 * start + sent.again / rates.bandwidth, start + sent.back / rates.bandwidth};
}

}  // namespace p3d::plan
