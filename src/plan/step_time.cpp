// SPDX-License-Identifier: Apache-2.0
// Predicts a step. A layer is counted once and multiplied: all layers of a stage and all microbatches are alike. The
// stage that is longest sets the pace of a pipeline; the others and the ends of the pipeline are its bubble.
#include <p3d/plan/step_time.hpp>

#include "plan/step_finish.hpp"
#include "plan/step_model.hpp"

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/machine_time.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/run_plan.hpp>
#include <p3d/schedule/registry.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace p3d::plan {

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
  double const parts = c.vocabulary_parts();
  auto const multiple = static_cast<double>(kernels.vocab_multiple), rows = static_cast<double>(m.vocab_size);
  vocabulary_ = multiple == 1 ? std::floor(rows / parts) : std::ceil(rows / (multiple * parts)) * multiple;
  embedding_ = c.replicates_embedding() ? rows : vocabulary_;
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
double StepModel::data_seconds(RankLayers const& layers, double parameters, double expert_parameters) const {
  auto const shard = c_.memory.shard;
  double const number = std::max(1.0, sum(layers, [](auto const&) { return 1.0; }));
  if (shard == config::Shard::parameters || (c_.parallel.dp == 1 && expert_replicas().size == 1)) return 0;
  auto const gather = [&](double each) {
    return replica_gather(each * parameters) + gather_seconds(cluster_, expert_replicas(), each * expert_parameters);
  };
  if (c_.compresses()) {
    // Whole gradients travel when they are complete, and nothing hides that. Bytes are those of an all-reduce that
    // takes as long.
    auto const d = static_cast<double>(c_.parallel.dp), of_replica = static_cast<double>(c_.workers_of_replica());
    double const width = type_bytes(c_).master;
    double bytes = 0;
    switch (c_.comm.compress) {
      case config::Compress::topk: bytes = c_.comm.topk * (width + 4) * of_replica * d / 2; break;
      case config::Compress::powersgd: bytes = width * 2 * c_.comm.powersgd_rank / width_; break;  // square matrices
      default: bytes = (1 + 4.0 / base::compression_block) * (of_replica + 1) / 2;
    }
    // Before, each worker's gradient is summed over the other axes; factors are made orthogonal over tp, one product of
    // columns after the other, for some seven matrices of a layer.
    RankGroup const others{c_.parallel.cp, stride(config::Axis::cp)};
    double const before = of_replica * all_reduce_seconds(cluster_, others, k_.reduced_bytes * parameters);
    double const products = c_.comm.compress == config::Compress::powersgd && c_.parallel.tp > 1
                                ? 7 * number * 2 * (c_.comm.powersgd_rank + 1)
                                : 0;
    RankGroup const along_dp{c_.parallel.dp, stride(config::Axis::dp)};
    return before + products * all_reduce_seconds(cluster_, tensor_group(), width * c_.comm.powersgd_rank) +
           all_reduce_seconds(cluster_, along_dp, bytes * parameters) +
           (shard == config::Shard::none ? 0 : gather(bytes_));
  }
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

template <class Of>
double StepModel::sum(RankLayers const& layers, Of const& of) const {
  double out = 0;
  for (auto const& range : layers) out += sum(range, of);
  return out;
}

std::vector<RankLayers> StepModel::layers_of_ranks() const {
  auto const& m = c_.model;
  int const pp = c_.parallel.pp;
  if (c_.pipeline.layer_split != config::LayerSplit::even && pp > 1) {
    auto const [known, added] =
        memory_.divided.try_emplace({pp, c_.pipeline.schedule, c_.pipeline.virtual_stages, c_.divides_vocabulary()});
    if (added) try {
        auto const stages = plan_few_microbatches(c_).stages;
        auto& ranks = known->second;
        ranks.resize(static_cast<std::size_t>(pp));
        for (int s = 0; s < stages.num_stages(); ++s) {
          auto const range = stages.layers(s);
          ranks[static_cast<std::size_t>(stages.pipeline_rank(s))].push_back(
              {range.begin, range.end + (stages.is_last(s) ? m.mtp.depth : 0)});
        }
      } catch (base::Error const&) {
        // A list for another number of stages: the rules refuse the layout when it is checked.
      }
    if (!known->second.empty()) return known->second;
  }
  std::vector<RankLayers> out;
  for (std::int64_t r = 0, next = 0; r < pp; ++r) {  // of chunks a rank has as many in all
    auto const end = next + m.layers / pp + (r < m.layers % pp ? 1 : 0);
    out.push_back({{next, end}});
    next = end;
  }
  out.back().back().end += m.mtp.depth;
  return out;
}

/// Seconds that ranks wait for a pipeline to fill and to empty, and for the longest of them. `longest`, `all`: seconds
/// of a microbatch on the longest rank, and on all. Of schedules that are no 1F1B the program itself is simulated.
double StepModel::bubble_seconds(double longest, double all, double head, double embedding) const {
  if (!StepPredictor::simulates(c_)) return (all - longest) / chunks();
  auto const few = with_few_microbatches(c_);
  double const filled = simulated_bubble(few, plan_few_microbatches(c_), longest, head, embedding);
  // Most schedules lose time while they fill and empty, whatever the number of microbatches. These lose some with each.
  constexpr std::array<std::string_view, 4> by_microbatch{"sequential", "round_robin", "v_min", "v_half"};
  auto const n = c_.batch.microbatches - few.batch.microbatches;
  if (n <= 0 || std::ranges::find(by_microbatch, c_.pipeline.schedule) == by_microbatch.end()) return filled;
  auto more = few;
  auto const added = std::min(n, few.batch.microbatches);
  more.batch.microbatches += added;
  more.batch.global = more.batch.microbatches * more.batch.micro * more.parallel.dp;
  double const twice = simulated_bubble(more, plan_pipeline(more, {}, execution_of(more)), longest, head, embedding);
  return std::max(0.0, filled + (twice - filled) / static_cast<double>(added) * static_cast<double>(n));
}

/// The seconds of a simulated step that the longest rank does not work.
double StepModel::simulated_bubble(config::Config const& config, PipelinePlan const& plan, double longest, double head,
                                   double embedding) const {
  PipelineCosts costs;
  for (int s = 0; s < plan.stages.num_stages(); ++s) {
    auto const range = plan.stages.layers(s);
    Layers const layers{range.begin, range.end + (plan.stages.is_last(s) ? c_.model.mtp.depth : 0)};
    double const first = plan.stages.has_embedding(s) ? embedding : 0;
    double const last = plan.stages.has_head(s) ? head : 0;
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
  if (!plan.stages.stages_own_vocabulary())
    costs.vocabulary = {.embed_forward = embedding / 2,
                        .head_forward = head / 3,
                        .head_backward = 2 * head / 3,
                        .embed_backward = embedding / 2};
  auto const step = simulate(plan.program, costs, execution_of(config)).makespan;
  return std::max(0.0, step - static_cast<double>(config.batch.microbatches) * longest);
}

int StepModel::chunks() const {
  if (c_.pipeline.virtual_stages > 0) return c_.pipeline.virtual_stages;
  auto const* generator = schedule::find_generator(c_.pipeline.schedule);
  return generator == nullptr ? 1 : generator->stages_per_rank;
}

/// Whether steps follow each other without a flush, so that the longest rank never waits.
bool StepModel::streams() const {
  if (!may_stream(c_)) return false;
  auto few = with_few_microbatches(c_);
  few.pipeline.flush = config::Flush::automatic;
  return plan_stream(few, plan_few_microbatches(few), execution_of(few)).stream.has_value();
}

StepPredictor::RankParameters StepModel::parameters() {
  std::int64_t const all = c_.model.layers, pp = c_.parallel.pp;
  find_kinds();
  auto const of_layers = [&](Layers const& layers, bool is_first) {
    return StepPredictor::Parameters{
        .dense = sum(layers, [](auto const& t) { return t.parameters; }),
        .experts = sum(layers, [](auto const& t) { return t.expert_parameters; }),
        .roots = is_first || c_.divides_vocabulary() ? roots(pp > 1) : 0,
        .expert_replicas = static_cast<double>(expert_replicas().size),
    };
  };
  auto const& kinds = memory_.kinds;
  auto const size = [](auto const& t) { return t.parameters + t.expert_parameters; };
  auto const& most =
      *std::max_element(kinds.begin(), kinds.end(), [&](auto const& a, auto const& b) { return size(a) < size(b); });
  double const share = std::ceil(sum({0, all}, [&](auto const& t) { return size(t) < size(most) ? 0.0 : 1.0; }) /
                                 static_cast<double>(pp));
  auto const begin = all / 2 - all / pp / 2;
  StepPredictor::RankParameters out{.first = of_layers({0, all / pp}, true),
                                    .middle = of_layers({begin, begin + all / pp}, false),
                                    .largest = of_layers({0, 0}, false)};
  out.largest.dense = share * most.parameters;
  out.largest.experts = share * most.expert_parameters;
  return out;
}

StepTime StepModel::predict(bool simulated) {
  auto const& p = c_.parallel;
  auto const& m = c_.model;
  find_kinds();
  double const head = memory_.last->head + accumulate_seconds(vocabulary_ * width_);
  double const embedding = memory_.last->embedding, message = message_seconds_between_stages();
  int const chunks = this->chunks();

  // At the ends of the pipeline a rank has one neighbour, with chunks every one has two for each.
  auto const ranks = layers_of_ranks();
  RankLayers longest;
  double most = -1, longest_seconds = 0, messages = 0, all = 0, parameters = 0, expert_parameters = 0;
  for (int r = 0; r < p.pp; ++r) {
    bool const first = r == 0, last = r + 1 == p.pp;
    auto const& layers = ranks[static_cast<std::size_t>(r)];
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
  // Blocks of multi-token prediction have the embedding beside the head, and matrices of their own.
  parameters += roots(p.pp > 1 && !m.mtp.on()) +
                (static_cast<double>(m.seq_len) + 2 * static_cast<double>(m.mtp.depth) * width_) * width_;

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
  bool const simulates = StepPredictor::simulates(c_);
  if (p.pp > 1 && !streams() && (simulated || !simulates))
    out[P::bubble] = bubble_seconds(longest_seconds, all, head, embedding);
  out[P::messages] = (n * messages + 2 * (p.pp - 1)) * message;
  if (shards(config::Shard::parameters)) {
    auto const once = [&](double numbers) {
      return replica_gather(bytes_ * numbers) + replica_gather(k_.reduced_bytes * numbers);
    };
    out[P::weights] += once(memory_.kinds.front().parameters) + n * once(roots(false));
  }
  out[P::data] = data_seconds(longest, parameters, expert_parameters);
  if (c_.ranks_share_embedding())
    out[P::embeddings] = all_reduce_seconds(cluster_, {2, stride(config::Axis::pp) * (p.pp - 1)},
                                            k_.reduced_bytes * embedding_ * width_);
  if (c_.replicates_embedding() && p.sequence)  // ranks of tp have looked up other tokens
    out[P::embeddings] += all_reduce_seconds(cluster_, tensor_group(), k_.reduced_bytes * embedding_ * width_);
  bool const divided = c_.memory.shard != config::Shard::none;
  out[P::optimizer] = stream_seconds(k_.optimizer_bytes *
                                     (parameters / (divided ? p.dp : 1) +
                                      expert_parameters / (divided ? static_cast<double>(expert_replicas().size) : 1)));
  finish(out, cluster_, c_.num_ranks(), n * (all / p.pp - longest_seconds));
  return out;
}

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

StepPredictor::RankParameters StepPredictor::parameters(config::Config const& config) {
  return StepModel(config, cluster_, kernels_, *memory_).parameters();
}

}  // namespace p3d::plan
