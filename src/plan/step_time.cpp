// SPDX-License-Identifier: Apache-2.0
// Predicts a step. A layer is counted once and multiplied: all layers of a stage and all microbatches are alike. The
// stage that is longest sets the pace of a pipeline; the others and the ends of the pipeline are its bubble.
#include <p3d/plan/step_time.hpp>

#include "plan/layer_linears.hpp"
#include "plan/layer_time.hpp"
#include "plan/step_finish.hpp"
#include "plan/step_memory.hpp"

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/machine_time.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/run_plan.hpp>
#include <p3d/plan/traffic.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

namespace p3d::plan {

namespace {

/// Layers [begin, end) of the model: those of one rank of the pipeline.
struct Layers {
  std::int64_t begin = 0, end = 0;
};

class StepModel {
public:
  StepModel(config::Config const& c, config::Cluster const& cluster, KernelGeneration const& kernels,
            StepPredictor::Memory& memory);
  /// `simulated`: schedules whose formula is an estimate are simulated.
  StepTime predict(bool simulated);
  StepPredictor::Parameters parameters();

private:
  using P = TimePart;
  double tp() const { return c_.parallel.tp; }
  RankGroup tensor_group() const { return {c_.parallel.tp, 1}; }
  std::int64_t stride(config::Axis axis) const { return strides_[axis]; }
  RankGroup replicas() const { return {c_.parallel.dp, stride(config::Axis::dp)}; }
  RankGroup expert_group() const;
  RankGroup expert_replicas() const;
  double replica_gather(double bytes) const { return gather_seconds(cluster_, replicas(), bytes); }
  double stream_seconds(double bytes) const {
    // The share of a host is that of kernels which compute exponentials, too.
    return bytes / (cluster_.device.bandwidth * (k_.host ? 1 : cluster_.device.bandwidth_share));
  }
  bool shards(config::Shard shard) const { return c_.memory.shard == shard && c_.parallel.dp > 1; }
  /// The seconds that launches add to so much work.
  double added(double work, double launches) const;

  double gemm(Linear const& linear, bool weight, bool input) const;
  double gemms(std::int64_t layer, bool weight, bool input, bool last = false) const;
  LayerPasses layer_passes(std::int64_t layer) const;
  LayerTime layer_time(LayerPasses const& passes) const;
  double attention_products(std::int64_t layer) const;
  double memory_traffic(std::int64_t layer) const;
  double tensor_sums(bool backward) const;
  double expert_exchange(std::int64_t layer) const;
  double context_exchange(double attention) const;
  double gathers(LayerTime const& t) const;
  double accumulate_seconds(double parameters) const;
  double head_seconds() const;
  double embedding_seconds() const;
  double beside_layer_seconds() const;
  double message_seconds_between_stages() const;
  void find_kinds();
  template <class Of>
  double sum(Layers const& layers, Of const& of) const;
  double bubble_seconds(double longest, double all, double head, double embedding) const;
  double data_seconds(Layers const& layers, double parameters, double expert_parameters) const;

  config::Config const& c_;
  config::Cluster const& cluster_;
  KernelGeneration k_;
  double peak_ = 0;        ///< operations per second of 16 bits, or of run.precision
  bool fp8_ = false;       ///< linears of layers compute in fp8
  double bytes_ = 2;       ///< bytes of a number that layers store
  double tokens_ = 0;      ///< tokens of a microbatch on a rank
  double width_ = 0;       ///< model.hidden
  double gates_ = 1;       ///< matrices of the MLP before its activation
  double vocabulary_ = 0;  ///< rows of the embedding on a rank
  double microbatches_ = 1;
  config::PerAxis strides_;  ///< ranks between neighbours along an axis of the mesh (parallel.order)
  StepPredictor::Memory& memory_;
};

StepModel::StepModel(config::Config const& c, config::Cluster const& cluster, KernelGeneration const& kernels,
                     StepPredictor::Memory& memory)
    : c_(c), cluster_(cluster), k_(with_types(kernels, c)), memory_(memory) {
  auto const& m = c.model;
  auto const operands = config::operand_precision(c);
  peak_ = cluster.peak(operands);
  // Both 16-bit types have the same units.
  if (peak_ == 0 && config::is_16bit(operands)) peak_ = std::max(cluster.device.bf16, cluster.device.fp16);
  if (peak_ == 0)
    base::refuse(fmt::format("a device with a rate for run.precision = \"{}\"", base::to_string(operands)),
                 fmt::format("none in [device] of {}", cluster.name), "run.precision",
                 "choose another precision, or add the rate to the cluster file");
  fp8_ = kernels.fp8 && cluster.device.fp8 > 0;
  bytes_ = static_cast<double>(type_bytes(c).storage);
  tokens_ = std::floor(static_cast<double>(c.batch.micro * m.seq_len) / c.parallel.cp);
  width_ = static_cast<double>(m.hidden);
  gates_ = m.gated() ? 2 : 1;
  microbatches_ = static_cast<double>(c.batch.microbatches);
  double const parts = tp() * (c.divides_vocabulary() ? c.parallel.pp : 1);
  auto const multiple = static_cast<double>(kernels.vocab_multiple), rows = static_cast<double>(m.vocab_size);
  vocabulary_ = multiple == 1 ? std::floor(rows / parts) : std::ceil(rows / (multiple * parts)) * multiple;
  if (memory.order.empty() || memory.order_text != c.parallel.order) {
    memory.order_text = c.parallel.order;
    memory.order = config::complete_order(layout::parse_order(c.parallel.order));
  }
  int stride = 1;
  for (auto axis : memory.order) {
    strides_[axis] = stride;
    stride *= c.parallel[axis];
  }
}

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
  return memory_seconds(cluster_, 16 * tokens_ * width_, 2 * tokens_ * width_) +
         all_reduce_seconds(cluster_, tensor_group(), bytes_ * tokens_ * width_);
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

/// One message between neighbouring stages.
double StepModel::message_seconds_between_stages() const {
  auto const& p = c_.parallel;
  if (p.pp == 1) return 0;
  double const bytes = bytes_ * tokens_ * width_;
  double const sent = message_seconds(cluster_, stride(config::Axis::pp), bytes / (k_.divides_messages ? tp() : 1));
  return sent + (k_.divides_messages ? gather_seconds(cluster_, tensor_group(), bytes) : 0) +
         k_.launches_message * cluster_.device.launch;
}

/// Seconds that the step waits for the other replicas: gradients are reduced, and with a divided state parameters
/// gathered.
double StepModel::data_seconds(Layers const& layers, double parameters, double expert_parameters) const {
  auto const shard = c_.memory.shard;
  double const number = std::max(1.0, sum(layers, [](auto const&) { return 1.0; }));
  if (shard == config::Shard::parameters || (c_.parallel.dp == 1 && expert_replicas().size == 1)) return 0;
  auto const gather = [&](double each) {
    return replica_gather(each * parameters) + gather_seconds(cluster_, expert_replicas(), each * expert_parameters);
  };
  bool const often = shard == config::Shard::gradients;
  double const times = often ? microbatches_ : 1;
  double const reduce = shard == config::Shard::none
                            ? all_reduce_seconds(cluster_, replicas(), k_.reduced_bytes * parameters) +
                                  all_reduce_seconds(cluster_, expert_replicas(), k_.reduced_bytes * expert_parameters)
                            : times * gather(k_.reduced_bytes);
  double const tail = shard == config::Shard::none ? 0 : gather(bytes_);
  if (!k_.overlaps_gradients) return reduce + tail;
  double const backward = sum(layers, [](auto const& t) { return t.backward.whole() + t.remade.whole(); });
  double const forward = sum(layers, [](auto const& t) { return t.forward.whole(); });
  double const exposed = std::max(k_.shared_units * reduce, reduce - times * backward) + reduce / number / times;
  return std::min(exposed, reduce) + std::max(tail - forward, tail / number);
}

/// Times of the kinds of layers, head and embedding. Those that another layout had, too, are kept.
void StepModel::find_kinds() {
  auto const& m = c_.model;
  auto const& p = c_.parallel;
  if (memory_.first.empty()) {
    for (std::int64_t l = 0; l < m.all_layers(); ++l) {
      auto kind = std::find_if(memory_.first.begin(), memory_.first.end(), [&](std::int64_t other) {
        return m.has_experts(l) == m.has_experts(other) && m.window_of(l) == m.window_of(other);
      });
      auto const place = static_cast<std::size_t>(kind - memory_.first.begin());
      if (kind == memory_.first.end()) {
        memory_.first.push_back(l);
        memory_.before.emplace_back(m.all_layers() + 1, 0);
      }
      for (auto after = l + 1; after <= m.all_layers(); ++after)
        ++memory_.before[place][static_cast<std::size_t>(after)];
    }
  }
  StepPredictor::Memory::Key const key{p.tp,
                                       p.cp,
                                       p.ep,
                                       p.etp,
                                       p.sequence ? 1 : 0,
                                       c_.batch.micro,
                                       strides_.cp,
                                       strides_.dp,
                                       static_cast<std::int64_t>(vocabulary_)};
  if (memory_.last == nullptr || key != memory_.last_key) {
    auto const [place, added] = memory_.entries.try_emplace(key);
    if (added) {
      for (auto l : memory_.first) place->second.kinds.push_back(layer_passes(l));
      place->second.embedding = embedding_seconds();
      place->second.head = head_seconds() + static_cast<double>(m.mtp.depth) * beside_layer_seconds();
    }
    memory_.last_key = key;
    memory_.last = &place->second;
  }
  memory_.kinds.clear();
  for (auto const& passes : memory_.last->kinds) memory_.kinds.push_back(layer_time(passes));
}

/// The sum over layers of what `of` says of each kind.
template <class Of>
double StepModel::sum(Layers const& layers, Of const& of) const {
  double out = 0;
  for (std::size_t k = 0; k < memory_.kinds.size(); ++k) {
    auto const& before = memory_.before[k];
    auto const number = before[static_cast<std::size_t>(layers.end)] - before[static_cast<std::size_t>(layers.begin)];
    if (number > 0) out += static_cast<double>(number) * of(memory_.kinds[k]);
  }
  return out;
}

/// Seconds that ranks wait for a pipeline to fill and to empty, and for the longest of them. `longest`, `all`: seconds
/// of a microbatch on the longest rank, and on all. Of schedules that are no 1F1B the program itself is simulated.
double StepModel::bubble_seconds(double longest, double all, double head, double embedding) const {
  auto const& p = c_.parallel;
  int const chunks = std::max(1, c_.pipeline.virtual_stages);
  if (!StepPredictor::simulates(c_)) return (all - longest) / chunks;
  // Microbatches beyond those that fill the pipeline add no bubble.
  auto few = c_;
  few.batch.microbatches = std::min<std::int64_t>(few.batch.microbatches, 2 * std::int64_t{p.pp});
  few.batch.global = few.batch.microbatches * few.batch.micro * p.dp;
  auto const plan = plan_pipeline(few, {}, execution_of(few));
  PipelineCosts costs;
  for (int s = 0; s < plan.stages.num_stages(); ++s) {
    auto const range = plan.stages.layers(s);
    Layers const layers{range.begin, range.end + (plan.stages.is_last(s) ? c_.model.mtp.depth : 0)};
    bool const divided = c_.divides_vocabulary();
    double const first = plan.stages.is_first(s) && !divided ? embedding : 0;
    double const last = plan.stages.is_last(s) && !divided ? head : 0;
    auto const weight = [](LayerTime const& t) { return t.backward.gemm_weight + t.accumulate; };
    costs.stages.push_back(
        {.forward = sum(layers, [](auto const& t) { return t.forward.whole() + t.gathers / 2; }) + first / 2 + last / 3,
         .input = sum(layers,
                      [&](auto const& t) {
                        return t.backward.whole() + t.remade.whole() + t.gathers / 2 - t.backward.gemm_weight;
                      }) +
                  last / 3,
         .weight = sum(layers, weight) + first / 2 + last / 3});
  }
  if (c_.divides_vocabulary())
    costs.vocabulary = {.embed_forward = embedding / 2,
                        .head_forward = head / 3,
                        .head_backward = 2 * head / 3,
                        .embed_backward = embedding / 2};
  auto const step = simulate(plan.program, costs, execution_of(few)).makespan;
  return std::max(0.0, step - static_cast<double>(few.batch.microbatches) * longest);
}

StepPredictor::Parameters StepModel::parameters() {
  auto const& m = c_.model;
  find_kinds();
  Layers const first{0, (m.layers + c_.parallel.pp - 1) / c_.parallel.pp};
  return {.dense = sum(first, [](auto const& t) { return t.parameters; }),
          .experts = sum(first, [](auto const& t) { return t.expert_parameters; }),
          .roots = vocabulary_ * width_ * (m.tied_embeddings || c_.parallel.pp > 1 ? 1 : 2),
          .expert_replicas = static_cast<double>(expert_replicas().size)};
}

StepTime StepModel::predict(bool simulated) {
  auto const& p = c_.parallel;
  auto const& m = c_.model;
  find_kinds();
  double const head = memory_.last->head + accumulate_seconds(vocabulary_ * width_);
  double const embedding = memory_.last->embedding, message = message_seconds_between_stages();
  int const chunks = c_.pipeline.schedule == "zb_v" ? 2 : std::max(1, c_.pipeline.virtual_stages);

  // Ranks of the pipeline with so many layers, as even as they can be. At the ends a rank has one neighbour, with
  // chunks every one has two for each.
  Layers longest;
  double most = -1, longest_seconds = 0, messages = 0, all = 0, parameters = 0, expert_parameters = 0;
  std::int64_t next = 0;
  for (int r = 0; r < p.pp; ++r) {
    bool const first = r == 0, last = r + 1 == p.pp;
    Layers layers{next, next + m.layers / p.pp + (r < m.layers % p.pp ? 1 : 0)};
    next = layers.end;
    if (last) layers.end += m.mtp.depth;
    double const seconds = sum(layers, [](auto const& t) { return t.seconds(); }) + (first ? embedding : 0) +
                           (last || c_.divides_vocabulary() ? head : 0);
    double const sends = p.pp == 1 ? 0 : chunks > 1 ? 2 * chunks : first || last ? 1 : 2;
    all += seconds;
    parameters = std::max(parameters, sum(layers, [](auto const& t) { return t.parameters; }));
    expert_parameters = std::max(expert_parameters, sum(layers, [](auto const& t) { return t.expert_parameters; }));
    if (seconds + sends * message <= most) continue;
    most = seconds + sends * message;
    longest = layers;
    longest_seconds = seconds;
    messages = sends;
  }
  // Embedding and head, once where they are one matrix or on two ranks; positions, and matrices of multi-token
  // prediction, whose blocks have the embedding beside the head.
  bool const apart = p.pp > 1 && !m.mtp.on();
  double const roots = vocabulary_ * width_ * (apart || m.tied_embeddings ? 1 : 2);
  parameters += roots + (static_cast<double>(m.seq_len) + 2 * static_cast<double>(m.mtp.depth) * width_) * width_;

  StepTime out;
  double const n = microbatches_;
  auto const add = [&](P part, auto const& of) { out[part] = n * sum(longest, of); };
  auto const add_pass = [&](P part, double Pass::*of) {
    add(part, [&](auto const& t) { return t.forward.*of + t.remade.*of + t.backward.*of; });
  };
  add(P::gemm_forward, [](auto const& t) { return t.forward.gemm_input + t.remade.gemm_input; });
  add(P::gemm_input, [](auto const& t) { return t.backward.gemm_input; });
  add(P::gemm_weight, [](auto const& t) { return t.backward.gemm_weight; });
  add_pass(P::attention, &Pass::attention);
  add_pass(P::memory, &Pass::memory);
  out[P::memory] += n * sum(longest, [](auto const& t) { return t.accumulate; });
  add_pass(P::tensor, &Pass::tensor);
  add_pass(P::context, &Pass::context);
  add_pass(P::experts, &Pass::experts);
  add_pass(P::launches, &Pass::launches);
  add(P::weights, [](auto const& t) { return t.gathers; });
  out[P::head] = n * (longest_seconds - sum(longest, [](auto const& t) { return t.seconds(); }));
  if (p.pp > 1)
    out[P::bubble] =
        simulated || !StepPredictor::simulates(c_) ? bubble_seconds(longest_seconds, all, head, embedding) : 0;
  out[P::messages] = (n * messages + 2 * (p.pp - 1)) * message;
  if (shards(config::Shard::parameters)) {
    double const whole = m.tied_embeddings ? vocabulary_ * width_ : 2 * vocabulary_ * width_;
    auto const once = [&](double numbers) {
      return replica_gather(bytes_ * numbers) + replica_gather(k_.reduced_bytes * numbers);
    };
    out[P::weights] += once(memory_.kinds.front().parameters) + n * once(whole);
  }
  out[P::data] = data_seconds(longest, parameters, expert_parameters);
  if (p.pp > 1 && m.last_reads_embedding() && !c_.divides_vocabulary())
    out[P::embeddings] = all_reduce_seconds(cluster_, {2, stride(config::Axis::pp) * (p.pp - 1)},
                                            k_.reduced_bytes * vocabulary_ * width_);
  bool const divided = c_.memory.shard != config::Shard::none;
  out[P::optimizer] = stream_seconds(k_.optimizer_bytes *
                                     (parameters / (divided ? p.dp : 1) +
                                      expert_parameters / (divided ? static_cast<double>(expert_replicas().size) : 1)));
  finish(out, cluster_, c_.num_ranks(), n * (all / p.pp - longest_seconds));
  return out;
}

}  // namespace

StepPredictor::StepPredictor(config::Cluster const& cluster, KernelGeneration const& kernels)
    : cluster_(cluster), kernels_(kernels), memory_(std::make_unique<Memory>()) {}
StepPredictor::~StepPredictor() = default;

bool StepPredictor::simulates(config::Config const& config) {
  auto const& schedule = config.pipeline.schedule;
  return config.parallel.pp > 1 &&
         (config.divides_vocabulary() || (schedule != "1f1b" && schedule != "interleaved_1f1b"));
}

StepTime StepPredictor::predict(config::Config const& config) {
  return StepModel(config, cluster_, kernels_, *memory_).predict(true);
}

double StepPredictor::least(config::Config const& config) {
  return StepModel(config, cluster_, kernels_, *memory_).predict(false).seconds();
}

StepPredictor::Parameters StepPredictor::parameters(config::Config const& config) {
  return StepModel(config, cluster_, kernels_, *memory_).parameters();
}

}  // namespace p3d::plan
