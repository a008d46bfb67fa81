// SPDX-License-Identifier: Apache-2.0
// The seconds of a layer on one rank, pass by pass, and of what stands beside the layers: head, embedding, and blocks
// of multi-token prediction.
#include "plan/step_model.hpp"

#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/traffic.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace p3d::plan {

/// The ranks over which a token's experts are dealt. They lie along dp, or begin within tp where experts are not
/// divided as the other weights are.
RankGroup StepModel::expert_group() const {
  auto const& p = c_.parallel;
  if (p.etp == p.tp) return {p.ep, stride(config::Axis::dp)};
  return {std::int64_t{p.ep} * p.etp, 1};
}

RankGroup StepModel::expert_replicas() const {
  auto const& p = c_.parallel;
  auto const group = expert_group();
  std::int64_t const all = std::int64_t{p.tp} * p.cp * p.dp / p.ep / p.etp;
  return {std::max<std::int64_t>(1, all), std::max(stride(config::Axis::dp), group.size * group.stride)};
}

double StepModel::added(double work, double launches) const {
  double const floor = launches * cluster_.device.launch;
  if (work <= 0) return floor;
  return work * (std::pow(1 + std::pow(floor / work, k_.overlap), 1 / k_.overlap) - 1);
}

/// Seconds of one of a layer's linears in one pass.
double StepModel::gemm(Linear const& l, bool weight, bool input) const {
  bool const fp8 = fp8_ && l.fp8;
  GemmType const type{fp8 ? cluster_.device.fp8 : peak_, weight, fp8};
  return weight  ? gemm_seconds(cluster_, type, l.n, l.k, l.rows, l.count)
         : input ? gemm_seconds(cluster_, type, l.rows, l.k, l.n, l.count)
                 : gemm_seconds(cluster_, type, l.rows, l.n, l.k, l.count);
}

/// Seconds of a layer's linears in one pass: forward; or, for backward, the gradients of inputs or of weights. `last`:
/// of those that end the layer.
double StepModel::gemms(std::int64_t layer, bool weight, bool input, bool last) const {
  double sum = 0;
  for (auto const& l : linears_of(c_, layer, tokens_)) {
    if (!last || l.ends_layer) sum += gemm(l, weight, input);
  }
  return sum;
}

/// Seconds of the products of attention's forward. Batched GEMMs of one head have two long sides and a short one.
double StepModel::attention_products(std::int64_t layer) const {
  auto const& m = c_.model;
  double const keys = keys_per_query(c_, layer, Keys::all);
  double rate = peak_ * cluster_.attention * k_.attention;
  if (!k_.flash) rate /= 1 + cluster_.gemm.size * (2 / keys + 1 / static_cast<double>(m.head_dim()));
  double const operations = tokens_ * keys * m.operations_per_key() / tp();
  return operations * (k_.flash ? 0.5 : 1.0) / rate;
}

/// Seconds of the forward kernels that wait for memory. Numbers read and written for each token: the residual stream's,
/// four rows of queries' width and four of results', four of the MLP's.
double StepModel::memory_traffic(std::int64_t layer) const {
  auto const& m = c_.model;
  auto const& p = c_.parallel;
  double const stream = stream_numbers(c_) / (p.sequence ? tp() : 1);
  // Under parallel.sequence a rank norms the latents of its own rows, else of all.
  double const attention =
      (4 * static_cast<double>(m.heads * (m.head_dim() + m.value_dim())) + attention_copies(c_)) / tp() +
      latent_norms(c_) / (p.sequence ? tp() : 1);
  auto const top_k = static_cast<double>(m.moe.top_k);
  double mlp = static_cast<double>(m.ffn) / tp(), permute = 0, biases = 0;
  if (m.has_experts(layer)) {
    double const rows = tokens_ / tp() * top_k * p.etp;
    mlp = static_cast<double>(m.moe.shared_ffn) / tp() + top_k * static_cast<double>(m.moe.ffn) / tp();
    // The biases of experts read and write what the linears have given.
    if (m.moe.bias) biases = 2 * top_k * (gates_ * static_cast<double>(m.moe.ffn) + width_) / tp();
    // Rows are sorted and sorted back: each is read and written twice.
    permute = memory_seconds(cluster_, 4 * bytes_ * rows * width_, bytes_ * rows * width_) *
              cluster_.device.bandwidth_share / cluster_.device.permute_share;
  }
  double const numbers = tokens_ * k_.traffic * (stream + attention + biases + 4 * gates_ * mlp);
  return memory_seconds(cluster_, bytes_ * numbers, bytes_ * tokens_ * width_) + permute;
}

/// Seconds in which rows go to the ranks of their experts and back.
double StepModel::expert_exchange(std::int64_t layer) const {
  auto const& p = c_.parallel;
  if (!c_.model.has_experts(layer)) return 0;
  double const rows = tokens_ / tp() * static_cast<double>(c_.model.moe.top_k) * p.etp;
  return 2 * all_to_all_seconds(cluster_, expert_group(), bytes_ * rows * width_);
}

/// Seconds that a layer's forward waits for the ranks of cp. Keys and values that go round a ring hide behind the
/// attention of the blocks that are there; those of an all-to-all do not.
double StepModel::context_exchange(double attention) const {
  auto const& p = c_.parallel;
  if (p.cp == 1) return 0;
  auto const& m = c_.model;
  RankGroup const group{p.cp, stride(config::Axis::cp)};
  bool const ring =
      c_.context.exchange == config::ContextExchange::ring || c_.context.exchange == config::ContextExchange::automatic;
  if (!ring) return all_to_all_seconds(cluster_, group, context_traffic(c_).forward);
  bool const latents = layout::context_division(c_).latents;
  double const keys = bytes_ * tokens_ *
                      (latents ? static_cast<double>(m.mla.key_value_latent())
                               : static_cast<double>(m.kv_heads * (m.head_dim() + m.value_dim())) / tp());
  double const step = ring_step_seconds(cluster_, group, keys);
  return std::max(0.0, (p.cp - 1) * step - attention * (p.cp - 1) / p.cp);
}

/// Seconds of a pass's sums over tp. There are two; with parallel.sequence they are a reduce-scatter and a gather of
/// the same bytes. Latent attention exchanges latents where it would exchange its input, and that too where queries
/// come from it.
double StepModel::tensor_sums(bool backward) const {
  auto const& mla = c_.model.mla;
  auto const sum = [&](double numbers) {
    return all_reduce_seconds(cluster_, tensor_group(), bytes_ * tokens_ * numbers);
  };
  double const whole = sum(width_);
  if (!mla.on()) return 2 * whole;
  double const input = sum(static_cast<double>(mla.latent())) + (mla.q_lora_rank > 0 ? 0 : whole);
  if (c_.parallel.sequence) return whole + (whole + input) / 2;
  return whole + (backward ? input : whole);
}

LayerPasses StepModel::layer_passes(std::int64_t layer) const {
  auto const& m = c_.model;
  auto const& p = c_.parallel;
  LayerPasses out;
  auto& f = out.forward;
  auto& b = out.backward;
  f.gemm_input = gemms(layer, false, false);
  b.gemm_input = gemms(layer, false, true);
  b.gemm_weight = gemms(layer, true, false);
  if (auto const expansions = expansions_of(c_, tokens_); expansions.count > 0) {
    double const forward = gemm(expansions, false, false);
    f.gemm_input += forward;
    b.gemm_input += forward + gemm(expansions, false, true);
    b.gemm_weight += gemm(expansions, true, false);
  }
  out.last = gemms(layer, false, false, true);
  out.last_sum = all_reduce_seconds(cluster_, tensor_group(), bytes_ * tokens_ * width_) / (p.sequence ? 2 : 1);
  double const products = attention_products(layer);
  double const scores = static_cast<double>(m.heads) / tp() * tokens_ * keys_per_query(c_, layer, Keys::all);
  double const softmax = memory_seconds(cluster_, k_.score_bytes * scores, 2 * scores);
  f.attention = products + softmax;
  b.attention = k_.attention_backward * products + k_.score_backward * softmax;
  f.memory = memory_traffic(layer);
  b.memory = k_.traffic_backward * f.memory;
  // A norm of all heads sums two numbers a token.
  f.tensor = tensor_sums(false), b.tensor = tensor_sums(true);
  if (m.qk_norm == config::QkNorm::full)
    f.tensor = b.tensor += all_reduce_seconds(cluster_, tensor_group(), 2.0 * type_bytes(c_).master * tokens_);
  f.experts = b.experts = expert_exchange(layer);
  f.context = context_exchange(products);
  b.context = 2 * f.context;
  double const collectives = p.tp > 1 ? (m.qk_norm == config::QkNorm::full ? 3 : 2) * k_.launches_collective : 0;
  f.launches = added(f.work(), k_.launches + collectives);
  b.launches = added(b.work(), k_.launches_backward + collectives);

  // Matrices, biases and norms. Of experts, those of this rank.
  auto const q = static_cast<double>(m.heads * m.head_dim()), kv = static_cast<double>(m.kv_heads * m.head_dim());
  auto const whole = width_ * static_cast<double>(m.mla.on() ? m.mla.latent() : 0);  // on each rank of tp
  bool const experts = m.has_experts(layer);
  auto const ffn = static_cast<double>(experts ? m.moe.shared_ffn : m.ffn);
  auto const router = experts ? static_cast<double>(m.moe.experts) : 0;
  auto const attention = static_cast<double>(m.attention_weights());
  out.parameters = whole + (attention - whole + width_ * ((gates_ + 1) * ffn + router + 5) + ffn + q + 2 * kv) / tp();
  if (experts)
    out.expert_parameters = std::floor(router / p.ep) * (gates_ + 1) * width_ * static_cast<double>(m.moe.ffn) / p.etp;
  return out;
}

LayerTime StepModel::layer_time(LayerPasses const& passes) const {
  LayerTime out{passes, {}};
  auto const& f = out.forward;
  auto const& m = c_.memory;
  if (m.recompute == config::Recompute::full) out.remade = f;
  if (m.recompute == config::Recompute::list && m.recompute_ops.attention) out.remade.attention = f.attention;
  // p3d needs the output of the last linears again only where a norm follows (layout/recompute.hpp). Megatron remakes
  // the whole layer.
  if (m.recompute == config::Recompute::full && k_.host && !c_.model.norms_after()) {
    double const ends = 1.0 / m.recompute_group;  // inside of a group a layer's output is made again, too
    out.remade.gemm_input -= ends * out.last;
    out.remade.tensor -= (m.recompute_communication ? ends : 2) * out.last_sum;
  }
  out.accumulate = accumulate_seconds(out.parameters + out.expert_parameters);
  out.gathers = gathers(out);
  return out;
}

/// Seconds in which the gradients of so many parameters are added to those of the microbatches before.
double StepModel::accumulate_seconds(double parameters) const {
  if (microbatches_ <= 1) return 0;
  bool const scattered = shards(config::Shard::gradients) || shards(config::Shard::parameters);
  return stream_seconds((bytes_ + 2 * k_.gradient_bytes) * parameters / (scattered ? c_.parallel.dp : 1));
}

/// Seconds that passes wait for the weights that replicas divide, and for their gradients, which travel beside the
/// passes of the layer before.
double StepModel::gathers(LayerTime const& t) const {
  if (!shards(config::Shard::parameters)) return 0;
  double const gather = replica_gather(bytes_ * t.parameters),
               scatter = replica_gather(k_.reduced_bytes * t.parameters);
  auto const longer = [&](double pass, double comm) {
    return std::max(pass * (1 + k_.shared_units * std::min(1.0, comm / pass)), comm) - pass;
  };
  return longer(t.forward.whole(), gather) + longer(t.backward.whole() + t.remade.whole(), gather + scatter);
}

/// Output layer and loss of a microbatch, forward and backward, without the sum of gradients.
double StepModel::head_seconds() const {
  auto const v = vocabulary_;
  GemmType const plain{peak_}, weight{peak_, true};
  double const loss = memory_seconds(cluster_, k_.loss_bytes * tokens_ * v, 2 * tokens_ * v);
  double const norm = 2 * memory_seconds(cluster_, 4 * tokens_ * width_, 2 * tokens_ * width_);
  bool const capped = c_.model.logits_softcap > 0;  // by a pass of its own
  double const cap = capped ? memory_seconds(cluster_, 2 * bytes_ * tokens_ * v, tokens_ * v) : 0;
  double const forward = gemm_seconds(cluster_, plain, tokens_, v, width_) + loss + norm + cap;
  double const backward = gemm_seconds(cluster_, plain, tokens_, width_, v) +
                          gemm_seconds(cluster_, weight, v, width_, tokens_) + loss +
                          all_reduce_seconds(cluster_, tensor_group(), bytes_ * tokens_ * width_);
  return forward + added(forward, k_.launches_head / 3) + backward + added(backward, 2 * k_.launches_head / 3);
}

/// The look-up of a microbatch's tokens and its gradient.
double StepModel::embedding_seconds() const {
  double const rows = tokens_ / (c_.replicates_embedding() && c_.parallel.sequence ? tp() : 1);
  double const sum =
      c_.replicates_embedding() ? 0 : all_reduce_seconds(cluster_, tensor_group(), bytes_ * tokens_ * width_);
  return memory_seconds(cluster_, 16 * rows * width_, 2 * rows * width_) + sum;
}

/// Numbers of embedding and head on a rank: of one matrix where they are the same, or on two ranks (`apart`).
double StepModel::roots(bool apart) const {
  if (c_.model.tied_embeddings) return vocabulary_ * width_;
  return width_ * (apart ? std::max(vocabulary_, embedding_) : vocabulary_ + embedding_);
}

/// A block of multi-token prediction without its layer: look-up, norms and the GEMM of its two inputs, and the head.
double StepModel::beside_layer_seconds() const {
  GemmType const plain{peak_}, weight{peak_, true};
  double const rows = tokens_ / (c_.parallel.sequence ? tp() : 1);
  double const norms = 4 * memory_seconds(cluster_, 4 * rows * width_, 2 * rows * width_);
  return head_seconds() + embedding_seconds() + norms + gemm_seconds(cluster_, plain, rows, width_, 2 * width_) +
         gemm_seconds(cluster_, plain, rows, 2 * width_, width_) +
         gemm_seconds(cluster_, weight, width_, 2 * width_, rows);
}

}  // namespace p3d::plan
