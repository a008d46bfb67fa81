// SPDX-License-Identifier: Apache-2.0
// Each function below is one line of the story that step_end.hpp tells. The sum of loss and norm is begun by the first
// STEP of a program and not by its end, so that a schedule may update one stage while another still computes. Example:
// with two stages on a rank there are two STEPs; the first one sums over all ranks, the second one only updates.

#include "step_end.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/optim/versions.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "evaluator.hpp"
#include "not_finite.hpp"

namespace p3d::engine {

template <class P>
StepEnd<P>::StepEnd(RankContext& rank, BatchLoader& loader, RankMemory<P>& memory, Executor& executor)
    : rank_(&rank), loader_(&loader), memory_(&memory), executor_(&executor), loss_scaler_(rank.config.precision) {
  auto const& c = rank.config;
  auto const& stages = rank.plan.stages;
  int const first = stages.pipeline_rank(0), last = stages.pipeline_rank(stages.num_stages() - 1);
  if (c.ranks_share_embedding() && first != last) {
    int const here = rank.here.pp;
    tie_group_ = rank.mesh.along("pp").split(here == first || here == last ? 0 : -1, here, "tied-embedding");
    if (tie_group_.valid()) tie_group_.prepare(all_reduce_settings(c));
  }
  if (c.optimizer.post_validation) opening_ = schedule::opening(rank.plan.training);
  schedule::Program const& program = rank.plan.training;
  for (auto const& action : program.ranks[static_cast<std::size_t>(rank.here.pp)])
    if (schedule::reduces(action.op)) ++reductions_[action.stage];
  sum_buckets();
}

template <class P>
void StepEnd<P>::sum_buckets() {
  for (auto& [number, owner] : memory_->units()) {
    auto& unit = *owner;
    unit.reducer.sum_by({});
    // Compression takes the whole gradient of a worker, which ranks that share its samples have in parts.
    if (unit.compressor)
      unit.reducer.sum_by([this, &unit](std::size_t bucket, auto whole) {
        auto const axes = unit.params.shard().buckets[bucket].axes.minus(layout::Axis::dp);
        return std::optional(
            collectives::start_all_reduce<typename P::Gradient>(rank_->exec, rank_->along(axes), whole));
      });
    if (!hooks_.grad_sync) continue;
    unit.reducer.sum_by([this, stage = number, &unit](std::size_t bucket, auto whole) {
      auto const& layout = unit.params.shard().buckets[bucket];
      return hooks_.grad_sync(
          {stage, bucket, &unit.params.layout(), &layout, whole, &unit.params.shard(), &rank_->along(layout.axes)});
    });
  }
}

template <class P>
void StepEnd<P>::set_hooks(TrainerHooks<P> hooks) {
  auto const& c = rank_->config;
  if (hooks.no_sync && c.memory.reduce == config::MessageEvery::step)
    base::refuse("memory.reduce = \"microbatch\" for the hook no_sync: gradients are summed more than once a step",
                 "memory.reduce = \"step\"", "Trainer::set_hooks", "set memory.reduce, or leave no_sync out");
  std::size_t stages = 0;  // of the rank that has most, so that all ranks say the same
  for (int p = 0; p < c.parallel.pp; ++p) stages = std::max(stages, rank_->plan.stages.stages_of(p).size());
  if (hooks.no_sync && stages > 1)
    base::refuse("one stage a rank for the hook no_sync: stages of a rank share the memory of whole gradients",
                 fmt::format("{} stages on a rank", stages), "Trainer::set_hooks",
                 "set memory.shard_layers to all layers of a rank and pipeline.virtual_stages to 1, or leave no_sync "
                 "out");
  bool const offloads = std::any_of(memory_->units().begin(), memory_->units().end(),
                                    [](auto const& item) { return item.second->offloaded.has_value(); });
  if (hooks.param_sync && offloads)
    base::refuse("weights that stay in memory for the hook param_sync", "weights or optimizer state that are offloaded",
                 "Trainer::set_hooks",
                 "set memory.offload_optimizer and memory.offload_parameters to \"none\", or leave param_sync out");
  if (hooks.param_sync && c.optimizer.post_validation)
    base::refuse("updates that stay for the hook param_sync",
                 "optimizer.post_validation = true, which takes some updates back", "Trainer::set_hooks",
                 "set optimizer.post_validation to false, or leave param_sync out");
  if (c.compresses() && (hooks.grad_sync || hooks.no_sync))
    base::refuse("comm.compress = \"none\" for the hooks grad_sync and no_sync: they and compression sum gradients",
                 fmt::format("\"{}\"", to_string(c.comm.compress)), "Trainer::set_hooks",
                 "remove comm.compress, or leave these hooks out");
  hooks_ = std::move(hooks);
  sum_buckets();
}

template <class P>
double StepEnd<P>::grad_scale(std::int64_t step) const {
  if (!hooks_.grad_scale) return 1.0;
  double const factor = hooks_.grad_scale(step);
  if (!std::isfinite(factor) || factor <= 0.0)
    base::refuse("a finite positive factor on the loss from the hook grad_scale", fmt::format("{}", factor),
                 fmt::format("step {}", step), "return another factor");
  return factor;
}

template <class P>
void StepEnd<P>::begin_reduction(int stage) {
  auto& unit = memory_->unit(stage);
  bool const last = unit.reductions + 1 >= reductions_[stage];
  unit.reducer.begin(last || !hooks_.no_sync || !hooks_.no_sync(step_, stage, unit.reductions));
}

template <class P>
void StepEnd<P>::begin(StepResult const& step, std::vector<std::int64_t> targets, bool another_follows, bool flows) {
  flows_ = flows;
  summed_up_ = false;
  step_ = step.step;
  loss_scale_ = step.loss_scale;
  targets_ = std::move(targets);
  another_follows_ = another_follows && step.step < rank_->config.run.steps;
  for (auto& [number, unit] : memory_->units()) {
    if (!gradients_are_zero_) unit->params.zero_grads(rank_->exec);
    unit->reduced_before = false;
    unit->reductions = 0;
    begin_reduction(number);
  }
}

template <class P>
void StepEnd<P>::reduce(int stage) {
  auto& unit = memory_->unit(stage);
  unit.reducer.finish();
  if (unit.compressor) {
    // Each reduction is that of one worker.
    bool const last = unit.reductions + 1 == unit.compressor->plan().workers_of_replica();
    unit.compressor->take(unit.reductions, step_, 1.0 / loss_scale_);
    last ? unit.compressor->start() : unit.params.zero_grads(rank_->exec);
  } else if (unit.reducer.sums())
    unit.params.take_gradients(rank_->exec, std::exchange(unit.reduced_before, true));
  ++unit.reductions;
  begin_reduction(stage);
  if (rank_->config.memory.reduce == config::MessageEvery::step && !flows_) start_tie(unit);
}

template <class P>
device::View1<typename P::Gradient> StepEnd<P>::gradients(StageUnit<P> const& unit) const {
  return aside_ ? device::View1<typename P::Gradient>(unit.held_gradients) : unit.params.grads();
}

template <class P>
device::View1<typename P::Gradient> StepEnd<P>::tied_gradient(StageUnit<P>& unit) {
  // It is alone in its bucket.
  auto const& params = unit.params;
  auto const& shard = params.shard();
  auto const offset = params.layout().find("embed.token.weight").offset;
  for (std::size_t i = 0; i < shard.buckets.size(); ++i) {
    auto const& b = shard.buckets[i];
    if (b.begin != offset) continue;
    if (!shard.sums_whole) return params.reduced(shard.parts[i]);  // other groups sum the rest
    return Kokkos::subview(gradients(unit), Kokkos::pair<std::int64_t, std::int64_t>(b.begin, b.end));
  }
  P3D_REQUIRE(false, "a tied embedding has a bucket");
  return {};
}

template <class P>
void StepEnd<P>::start_tie(StageUnit<P>& unit) {
  if (!tie_group_.valid() || !(unit.stage.is_first() || unit.stage.is_last())) return;
  tie_ = collectives::start_all_reduce<typename P::Gradient>(rank_->exec, tie_group_, tied_gradient(unit));
}

template <class P>
void StepEnd<P>::finish_compressed() {
  for (auto& [number, unit] : memory_->units())
    if (unit->compressor) unit->compressor->add_up();
  for (auto& [number, unit] : memory_->units()) {
    if (!unit->compressor) continue;
    unit->compressor->finish(1.0 / loss_scale_);
    unit->params.take_gradients(rank_->exec, false);
  }
}

template <class P>
void StepEnd<P>::finish_tie() {
  using Gradient = typename P::Gradient;
  auto const& config = rank_->config;
  auto const& stages = rank_->plan.stages;
  auto& units = memory_->units();
  if (config.memory.reduce == config::MessageEvery::microbatch)
    for (auto& [number, unit] : units) start_tie(*unit);
  if (tie_.active()) wait(tie_);
  auto const first = units.find(0), last = units.find(stages.num_stages() - 1);
  if (!config.model.last_reads_embedding() || !stages.stages_own_vocabulary() || stages.shares_tied() ||
      first == last || first == units.end() || last == units.end())
    return;
  auto const a = tied_gradient(*first->second), b = tied_gradient(*last->second);
  auto const n = static_cast<std::int64_t>(a.extent(0));
  kernels::sum_into_both<Gradient>(rank_->exec, device::View2<Gradient>(a.data(), 1, n),
                                   device::View2<Gradient>(b.data(), 1, n));
}

template <class P>
void StepEnd<P>::wait(comm::Request& request) {
  auto* const recorder = executor_->recorder();
  double const begin = recorder ? Recorder::now() : 0.0;
  request.wait();
  if (recorder) recorder->waited({schedule::Op::optimizer_step}, begin);
}

template <class P>
void StepEnd<P>::start_sum(double vote) {
  // One sum in the order of the model, however the stages are cut.
  bool const packed = rank_->config.memory.shard >= config::Shard::gradients;
  for (auto& [number, unit] : memory_->units())
    if (packed && unit->params.shard().over > 0)
      parallel::exchange_gradients<typename P::Gradient>(rank_->exec, unit->params.shard(),
                                                         unit->params.owned_gradients(), memory_->replica_groups());
  finalize_gradients();
  std::vector<parallel::StageGradients<typename P::Gradient>> stages;
  for (auto& [number, unit] : memory_->units())
    stages.push_back({&unit->params.layout(), &unit->params.shard(),
                      packed ? unit->params.owned_gradients() : gradients(*unit), unit->stage.is_first()});
  parallel::add_sum_squares<typename P::Gradient>(rank_->exec, stages, packed, rank_->here, memory_->squares());
  // On devices the host is ahead of what it launched: here it waits for the backward passes. That is no time of the
  // update, whose phase this is.
  base::Stopwatch watch;
  auto const own = memory_->take_sums();
  double const waited = watch.seconds();
  executor_->times()[Phase::backward] += waited;
  executor_->times()[Phase::optimizer] -= waited;
  bool const counts = rank_->counts_loss();
  sum_targets_ = targets_;
  sum_ = {counts ? own[0] : 0.0, own[1], rank_->stop.here() ? 1.0 : 0.0, vote};
  for (std::size_t k = 2; k < own.size(); ++k) sum_.push_back(counts ? own[k] : 0.0);
  sum_request_ =
      rank_->mesh.world().all_reduce(sum_.data(), std::ssize(sum_), comm::Type::float64, comm::Reduction::sum);
}

template <class P>
bool StepEnd<P>::take_sum(StepResult& result) {
  wait(sum_request_);
  result.loss = base::without_sign_of_nan(sum_[0] / divisor(sum_targets_.front()));
  auto const depth = sum_.size() - 4;
  for (std::size_t k = 0; k < depth; ++k)
    result.mtp_loss += sum_[4 + k] / divisor(sum_targets_[1 + k]) / static_cast<double>(depth);
  result.mtp_loss = base::without_sign_of_nan(result.mtp_loss);
  result.grad_norm = base::without_sign_of_nan(std::sqrt(sum_[1]) / result.loss_scale);
  result.stop = sum_[2] > 0.0;
  result.votes = sum_[3];
  bool const finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  last_fitted_ = finite && optim::clip_factor(result.grad_norm, rank_->config.optimizer.grad_clip) == 1.0;
  return finite;
}

template <class P>
void StepEnd<P>::finish_sum(StepResult& result) {
  bool const finite = take_sum(result);
  if (tried_out_ && !last_fitted_) take_back();  // before anybody looks for what is not finite
  if (finite) {
    loss_scaler_.update(false);
  } else {
    overflowed(result);
  }
}

template <class P>
void StepEnd<P>::update(int stage, StepResult& result) {
  auto const& config = rank_->config;
  if (!std::exchange(summed_up_, true)) {
    if (flows_ && config.mixes_delays()) return update_at_once(result);
    settle();
    if (flows_) return put_aside(result);
    finish_compressed();
    finish_tie();
    start_sum(result.votes);
    tried_out_ = tries_out();
    if (tried_out_) {
      ++post_validation_.tried_out;
    } else {
      finish_sum(result);
    }
  }
  skipped_update_ = result.skipped();
  if (skipped_update_) {
    gradients_are_zero_ = false;
    memory_->pass_version(stage);
    return;
  }
  double const clip = tried_out_ ? 1.0 : optim::clip_factor(result.grad_norm, config.optimizer.grad_clip);
  // The gradients of an update that is tried out are kept too: it may have to be made once more.
  apply(stage, {updates_of(result.step - 1) + 1, result.lr, clip / result.loss_scale, keep_gradients_ || tried_out_},
        false);
  // Gradients that were tried out stay. Where they are divided that does no harm: the next sum takes their place, and
  // whole gradients are zero already.
  bool const overwritten = config.memory.shard >= config::Shard::gradients;
  gradients_are_zero_ = !keep_gradients_ && (!tried_out_ || overwritten);
}

template <class P>
void StepEnd<P>::apply(int stage, optim::UpdateStep const& step, bool waited) {
  auto const& config = rank_->config;
  bool const stochastic = config.precision.stochastic_rounding, late = config.latest_delay() > 0;
  bool const many_versions = memory_->has_many_versions();
  memory_->count_version(step.number);
  for (auto& [number, owner] : memory_->units()) {
    if (stage >= 0 && number != stage) continue;
    auto& unit = *owner;
    memory_->for_pieces(unit, [&](optim::Piece<P>& piece, device::View1<typename P::Storage> values) {
      if (waited) piece.gradient = unit.held(piece.run);
      if (tried_out_) unit.state.keep_replaced(piece);
      if (!stochastic) piece.storage = values;
      if (many_versions)
        optim::update_versions(rank_->exec, *unit.optimizer, step, unit.params.layout(), piece);
      else
        unit.optimizer->update(rank_->exec, step, piece);
      if (stochastic || (many_versions && P::has_master))
        memory_->round_read(unit, piece.run, late ? piece.replaced_master : piece.master, values, step.number);
    });
    if (unit.sharded) unit.sharded->updated();
  }
  synchronise_weights(stage, step.number);
}

template <class P>
void StepEnd<P>::put_aside(StepResult const& result) {
  memory_->put_gradients_aside();
  gradients_are_zero_ = true;
  skipped_update_ = false;
  aside_ = true;
  for (auto& [number, unit] : memory_->units()) start_tie(*unit);
  if (!waits_for_tie()) start_sum(result.votes);
  aside_ = false;
  waiting_ = result;
}

template <class P>
void StepEnd<P>::update_at_once(StepResult const& result) {
  take_sums_but(static_cast<std::size_t>(rank_->plan.results_late(rank_->config)) - 1);
  give_up_failed();
  skipped_update_ = false;
  start_sum(result.votes);
  auto const number = updates_of(result.step - 1) + 1;
  apply(-1, {number, result.lr, 1.0 / result.loss_scale}, false);
  gradients_are_zero_ = true;
  memory_->round_ahead(number);
  summed_.push_back(
      {result, std::exchange(sum_targets_, {}), std::exchange(sum_, {}), std::exchange(sum_request_, {})});
}

template <class P>
void StepEnd<P>::take_sums_but(std::size_t newest) {
  while (summed_.size() > newest) {
    auto next = std::move(summed_.front());
    summed_.pop_front();
    sum_targets_ = std::move(next.targets);
    sum_ = std::move(next.sum);
    sum_request_ = std::move(next.request);
    bool const finite = take_sum(next.result);
    if (failed_) continue;  // later steps were made with what failed
    if (finite)
      results_.push_back(std::move(next.result));
    else
      failed_ = std::move(next.result);
  }
}

template <class P>
bool StepEnd<P>::waits_for_tie() const {
  return tie_group_.valid() && memory_->units().contains(0);
}

template <class P>
void StepEnd<P>::complete() {
  if (!waiting_) return;
  auto result = *std::exchange(waiting_, {});
  if (tie_.active()) wait(tie_);
  aside_ = true;
  if (waits_for_tie()) start_sum(result.votes);
  aside_ = false;
  if (!take_sum(result)) {
    failed_ = std::move(result);
    return;
  }
  loss_scaler_.update(false);
  auto const number = updates_of(result.step - 1) + 1;
  double const clip = optim::clip_factor(result.grad_norm, rank_->config.optimizer.grad_clip);
  apply(-1, {number, result.lr, clip / result.loss_scale, true}, true);
  memory_->round_ahead(number);
  results_.push_back(std::move(result));
}

template <class P>
void StepEnd<P>::settle() {
  complete();
  take_sums_but(0);
  give_up_failed();
}

template <class P>
void StepEnd<P>::give_up_failed() {
  if (!failed_) return;
  auto failed = *std::exchange(failed_, {});
  executor_->abandon();
  summed_.clear();
  overflowed(failed, !rank_->config.mixes_delays());
}

template <class P>
void StepEnd<P>::finalize_gradients() {
  if (!hooks_.finalize_model_grads) return;
  std::vector<OwnedNumbers<typename P::Gradient>> owned;
  for (auto& [number, unit] : memory_->units())
    for (auto const& run : unit->params.shard().owned)
      owned.push_back({number, &unit->params.layout(), run, unit->params.reduced(run)});
  hooks_.finalize_model_grads(owned, targets_.front());
}

template <class P>
void StepEnd<P>::synchronise_weights(int stage, std::int64_t update) {
  if (!hooks_.param_sync) return;
  std::vector<OwnedNumbers<typename P::Master>> owned;
  for (auto& [number, owner] : memory_->units()) {
    if (stage >= 0 && number != stage) continue;
    auto& unit = *owner;
    memory_->for_master(unit, [&, of = number](layout::OwnedRun const& run, auto const& master) {
      owned.push_back({of, &unit.params.layout(), run, master});
    });
  }
  hooks_.param_sync(owned, update);
  memory_->master_changed();
}

template <class P>
void StepEnd<P>::finish(StepResult& result) {
  if (!tried_out_) return;
  executor_->open(rank_->plan.training, opening_, result.step + 1,
                  memory_->loading(*loader_, loader_->training(result.step)));
  base::Stopwatch watch;
  comm::set_activity(result.step, "the global norm");
  finish_sum(result);
  if (!std::exchange(tried_out_, false)) update(-1, result);
  executor_->times()[Phase::optimizer] += watch.seconds();
}

template <class P>
void StepEnd<P>::take_back() {
  forget_opening();
  for (auto& [number, unit] : memory_->units()) {
    for (auto const& run : unit->params.shard().owned)
      unit->state.take_back(rank_->exec, run, unit->params.master(run));
    if (unit->sharded) unit->sharded->updated();
  }
  memory_->master_changed();  // should no update follow
  tried_out_ = false;
  ++post_validation_.taken_back;
}

template <class P>
void StepEnd<P>::forget_opening() {
  settle();
  if (!executor_->has_opened()) return;
  executor_->abandon();
  for (auto& [number, unit] : memory_->units())
    if (unit->sharded) unit->sharded->give_up();
  memory_->take_sums();  // of the last stage's forwards
}

template <class P>
void StepEnd<P>::refresh_weights(std::int64_t steps_done) {
  if (!memory_->master_is_newer()) return;
  forget_opening();  // it read the old ones
  memory_->refresh_weights(updates_of(steps_done));
}

template <class P>
void StepEnd<P>::overflowed(StepResult& result, bool waited) {
  auto const bad = find_not_finite(*rank_, *memory_, waited ? SearchedGradients::held : SearchedGradients::reduced);
  auto where = bad.text;
  if (step_ > result.step && rank_->config.mixes_delays())
    where += fmt::format("; found at step {}, when updates had been made with it", step_);
  double const scale = loss_scaler_.scale();
  bool const helps = loss_scaler_.update(true);
  if (helps && !bad.in_weights) {  // no scale mends weights
    result.overflow = where;
    return;
  }
  bool const scaled = loss_scaler_.skips() && !helps;
  throw base::Error(
      {.expected = "a finite loss and gradient norm",
       .found = fmt::format("loss {}, gradient norm {} at step {}{}; {}", result.loss, result.grad_norm, result.step,
                            scaled ? fmt::format(" with a loss scale of {}, its floor", scale) : "", where),
       .where = fmt::format("step {} of {}", result.step, rank_->config.run.steps),
       .fix = fmt::format("lower optimizer.lr, or raise optimizer.warmup_steps{}{}",
                          rank_->config.optimizer.grad_clip > 0 ? "" : "; set optimizer.grad_clip = 1.0",
                          rank_->config.run.precision == config::Precision::fp64
                              ? ""
                              : "; run.precision = \"fp64\" shows whether it is rounding")},
      base::ExitCode::not_finite);
}

template <class P>
void StepEnd<P>::require_finite_weights(std::int64_t steps_done) {
  settle();
  memory_->show_newest(true);
  auto const bad = find_not_finite(*rank_, *memory_, SearchedGradients::none);
  if (!bad.found) return;
  throw base::Error({.expected = "finite weights",
                     .found = bad.text,
                     .where = fmt::format("behind step {} of {}", steps_done, rank_->config.run.steps),
                     .fix = "go on from an older checkpoint, with a lower optimizer.lr, more optimizer.warmup_steps or "
                            "optimizer.grad_clip = 1.0; this state is not written"},
                    base::ExitCode::not_finite);
}

#define P3D_INSTANTIATE(P) template class StepEnd<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
