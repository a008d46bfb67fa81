// SPDX-License-Identifier: Apache-2.0
// One step as a recipe, over the objects that do the work:
//   RankContext    the plan, the mesh and this rank's place in it
//   BatchLoader    which samples a microbatch has, and their tokens
//   RankMemory     the stages of this rank, and where all of their numbers lie
//   Executor       runs the program's actions; hooks call the others where it must
//   StepEnd        sums, loss scale, update, early start of the next step
//   ExpertBalance  what becomes of the choices of experts
//   Inspection     what only tests do

#include <p3d/engine/trainer.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/optim/lr_schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "checkpoint_parts.hpp"
#include "evaluator.hpp"
#include "expert_balance.hpp"
#include "policy_check.hpp"
#include "sample.hpp"
#include "step_end.hpp"
#include "vocabulary_actions.hpp"

namespace p3d::engine {

namespace {

/// Plans on every rank, since a schedule may come from a file.
RunPlan plan_together(config::Config const& config, comm::Communicator const& parent) {
  comm::Communicator own(parent.mpi(), "plan");
  return comm::agree(own, "plan the run", [&] { return make_run_plan(config); });
}

template <class P>
Executor make_executor(RankContext& rank, RankMemory<P>& memory) {
  std::map<int, StagePort*> stages;
  for (auto& [number, unit] : memory.units()) stages[number] = unit->port.get();
  return Executor(
      std::move(stages), rank.mesh.along("pp"), rank.exec, [&rank] { return rank.wait_seconds(); }, rank.polls());
}

}  // namespace

template <class P>
struct Trainer<P>::State {
  RankContext rank;
  BatchLoader loader;
  RankMemory<P> memory;
  VocabularyCommunicators vocabulary_communicators;
  std::optional<PartActions<P>> vocabulary;  ///< empty unless the vocabulary is divided over the pipeline
  Executor executor;
  StepEnd<P> end;
  ExpertBalance<P> balance;
  Inspection<P> inspection;
  Evaluator evaluator;
  std::int64_t steps_done = 0;
  std::int64_t tokens_done = 0;  ///< inputs of the samples of these steps
  double elapsed = 0.0;          ///< seconds inside step()
  std::int64_t steps_run = 0;    ///< calls of step()
  bool given_provider = false;   ///< weights come from somebody who knows no newest version
  bool said_no_targets = false;  ///< a step in which nothing is predicted was warned of

  State(config::Config const& c, RunPlan run_plan, comm::Communicator const& parent, ProviderFactory<P> const& provider)
      : rank(c, std::move(run_plan), parent),
        loader([&] {
          auto& world = rank.mesh.world();
          auto source = comm::agree(world, "open the training data", [&] { return data::make_token_source(c); });
          auto sampler = comm::agree(world, "divide the training data", [&] { return data::Sampler(*source, c); });
          return BatchLoader(rank.config, rank.plan.stages, rank.here, std::move(source), std::move(sampler));
        }()),
        memory(rank, loader.source(), provider),
        executor(make_executor(rank, memory)),
        end(rank, loader, memory, executor),
        balance(rank, memory),
        inspection(rank, memory, end),
        evaluator(rank.config, loader, rank.mesh, [this](SampleSource const& samples) {
          executor.run(rank.plan.evaluation, steps_done, 0.0, memory.loading(loader, samples));
          double const loss = memory.take_sums()[0];
          return rank.counts_loss() ? loss : 0.0;
        }) {
    if (auto* const store = memory.activation_store()) executor.offload_into(*store);
    if (memory.vocabulary() != nullptr) divide_vocabulary();
    if (rank.config.parallel.pp > 1 && rank.config.pipeline.p2p == config::P2p::ring)
      executor.make_ring(rank.plan.training.rounds().periodic);
    if (rank.config.timers.level > 1) executor.time_actions();
  }

  /// Collective.
  void divide_vocabulary() {
    auto& pipeline = rank.mesh.along("pp");
    auto& blocks = rank.along(layout::vocabulary_axes(rank.plan.grid.sizes()));
    auto& to = vocabulary_communicators;
    auto const same = [&](char const* name) { return comm::Communicator(pipeline.mpi(), name); };
    to = {same("vocabulary-sum"), same("vocabulary-output"),
          blocks.split(0, memory.vocabulary()->number(), "vocabulary-parts"), same("vocabulary-input-gradient"),
          same("vocabulary-gradient")};
    for (auto* summed : {&to.sum, &to.input_gradient}) summed->prepare(all_reduce_settings(rank.config));
    auto const& stages = rank.plan.stages;
    auto& first_unit = *memory.units().begin()->second;
    vocabulary.emplace(*memory.vocabulary(), *first_unit.weights, to, rank.exec, stages.pipeline_rank(0),
                       stages.pipeline_rank(stages.num_stages() - 1));
    executor.divide_vocabulary(*vocabulary);
  }

  Hooks training_hooks(StepResult& result) {
    auto hooks = memory.loading(loader, loader.training(steps_done));
    hooks.gradients_ready = [this](int stage, std::size_t first, std::size_t last) {
      inspection.spoil(stage, first, last);
      memory.unit(stage).reducer.ready(first, last);
    };
    hooks.reduce_gradients = [this](int stage) { end.reduce(stage); };
    hooks.optimizer_step = [this, &result](int stage) { end.update(stage, result); };
    return hooks;
  }

  /// The hooks of a step of a stream, in which microbatches from stream.microbatches on are those of later steps.
  Hooks stream_hooks(StepResult& result, schedule::Stream const& stream) {
    auto hooks = training_hooks(result);
    std::vector<decltype(hooks.load)> load{hooks.load};
    for (int k = 1; k <= stream.most_ahead(); ++k)
      load.push_back(memory.loading(loader, loader.training(steps_done + k)).load);
    hooks.load = [load = std::move(load), each = stream.microbatches](int stage, int slot, int microbatch) {
      load.at(static_cast<std::size_t>(microbatch / each))(stage, slot, microbatch % each);
    };
    P3D_REQUIRE(!hooks.length, "samples of a stream have one length");
    hooks.newest_needed = [this] { end.complete(); };
    return hooks;
  }

  /// Before weights are read for anything but a step.
  void prepare_to_read() {
    end.forget_opening();
    memory.show_newest(true);
    end.refresh_weights(steps_done);
  }
};

template <class P>
Trainer<P>::Trainer(config::Config const& config, comm::Communicator const& parent)
    : Trainer(config, plan_together(config, parent), parent) {}

template <class P>
Trainer<P>::Trainer(config::Config const& config, RunPlan plan, comm::Communicator const& parent,
                    ProviderFactory<P> const& provider) {
  require_policy<P>(config);
  bool const moves = config.memory.divides() || config.memory.moves_weights();
  P3D_REQUIRE(!moves || !provider, "weights that are divided or wait elsewhere have their own provider");
  require_supported(plan.training, moves || static_cast<bool>(provider),
                    config.memory.offload_activations != config::OffloadTo::none);
  ProviderFactory<P> const resident = [](int, model::Parameters<P>&, model::StageWeights<P> whole) {
    return std::make_unique<model::ResidentWeights<P>>(std::move(whole));
  };
  state_ = std::make_unique<State>(config, std::move(plan), parent, provider ? provider : resident);
  state_->given_provider = static_cast<bool>(provider);
}

template <class P>
Trainer<P>::~Trainer() {
  // An opening may have messages that nobody has waited for yet. Where an exception unwinds, other ranks may never
  // come, so nobody waits.
  if (!state_ || std::uncaught_exceptions() > 0) return;
  try {
    state_->end.forget_opening();
  } catch (std::exception const& e) {  // nobody above a destructor can handle it
    base::error_here(e.what());
    comm::abort_all(static_cast<int>(base::ExitCode::run_failed));
  }
}

template <class P>
StepResult Trainer<P>::step(double vote, bool another_follows) {
  auto results = run_step(vote, another_follows, false);
  auto own = std::move(results.back());
  results.pop_back();
  state_->end.give_back(std::move(results));
  return own;
}

template <class P>
std::vector<StepResult> Trainer<P>::advance(double vote, bool another_follows) {
  return run_step(vote, another_follows, true);
}

template <class P>
std::vector<StepResult> Trainer<P>::drain() {
  state_->end.forget_opening();
  return late_results();
}

template <class P>
std::vector<StepResult> Trainer<P>::late_results() {
  return state_->end.take_results();
}

template <class P>
std::vector<StepResult> Trainer<P>::run_step(double vote, bool another_follows, bool may_flow) {
  auto& s = *state_;
  auto const& config = s.rank.config;
  auto const& stream = s.rank.plan.stream;
  // The last steps of a run have none behind them whose forwards could be early.
  auto const behind = config.run.steps - s.steps_done - 1;
  bool const flows = stream && may_flow && another_follows && behind >= stream->most_ahead() && s.end.may_flow() &&
                     !s.given_provider && s.executor.recorder() == nullptr;
  // Where several steps have begun, there are no lists that end them.
  if (stream && !flows && stream->last.empty()) s.end.forget_opening();
  s.memory.show_newest(false);
  s.end.refresh_weights(s.steps_done);
  if (config.timers.barrier) s.rank.mesh.world().barrier().wait();
  base::Stopwatch watch;
  StepResult result;
  result.step = s.steps_done + 1;
  result.votes = vote;
  result.lr = optim::learning_rate(config.optimizer, s.end.updates_of(s.steps_done), config.run.steps);
  result.loss_scale = s.end.loss_scaler().scale() * s.end.grad_scale(result.step);
  result.tokens = s.loader.tokens_of(s.steps_done);
  // Where samples are whole documents without a token that ends them, every input has a target.
  bool const none_masked = s.loader.sampler().varies() && config.data.eod_token < 0;
  auto const samples = s.loader.training(s.steps_done);
  auto const targets =
      none_masked && !samples.predicts ? std::vector{result.tokens} : s.evaluator.count_targets(samples);
  if (targets.front() == 0 && !std::exchange(s.said_no_targets, true)) {
    base::warn_root(fmt::format(
        "step {} has no token to predict: no target counts behind the end of a document. Its loss is written as 0, and "
        "it learns nothing; other such steps are not named. p3d data stats shows what is in the files",
        result.step));
  }
  auto const& mtp = config.model.mtp;
  std::vector<double> mtp_scales;
  for (std::size_t k = 1; k < targets.size(); ++k)
    mtp_scales.push_back(result.loss_scale * mtp.factor() / divisor(targets[k]));
  for (auto& w : s.memory.workspaces()) {
    w.set_mtp(mtp_scales, mtp.factor());
    w.set_balance({.sample = result.loss_scale / static_cast<double>(config.batch.global),
                   .token = result.loss_scale / static_cast<double>(config.batch.global * config.model.seq_len)});
  }
  bool const begun = stream && s.executor.has_opened();
  if (flows && !begun) s.memory.round_ahead(s.end.updates_of(s.steps_done));
  s.end.begin(result, targets, another_follows, flows);
  double const scale = result.loss_scale / divisor(targets.front());
  if (flows || begun)
    s.executor.run(*stream, flows, result.step, scale, s.stream_hooks(result, *stream));
  else
    s.executor.run(s.rank.plan.training, result.step, scale, s.training_hooks(result));
  s.end.finish(result);
  s.balance.follow(!s.end.skipped_update());
  comm::settle();
  device::fence(s.rank.exec, "p3d::engine::step");
  ++s.steps_done;
  s.tokens_done += result.tokens;
  s.elapsed += watch.seconds();
  ++s.steps_run;
  auto results = s.end.take_results();
  if (!flows) results.push_back(std::move(result));
  return results;
}

template <class P>
void Trainer<P>::check_samples(std::int64_t step) const {
  state_->loader.check_training(step);
}

template <class P>
void Trainer<P>::check_evaluation(std::int64_t batches) const {
  state_->loader.check_evaluation(batches);
}

template <class P>
std::int64_t Trainer<P>::steps_until_stop() const {
  auto const& c = config();
  auto const& stream = plan().stream;
  // Forwards of the next step run early with post-validation, and those of several in a stream.
  std::int64_t const early = stream ? stream->most_ahead() : c.optimizer.post_validation ? 1 : 0;
  return 1 + plan().results_late(c) + early;
}

template <class P>
double Trainer<P>::evaluate(std::int64_t batches) {
  auto& s = *state_;
  s.prepare_to_read();
  s.rank.stop.early = false;
  return s.evaluator.evaluate(batches, [&] { return s.rank.stop.anywhere(s.rank.mesh.world()); });
}

template <class P>
Score Trainer<P>::score(std::vector<layout::Range> const& parts, data::TokenSource const* source,
                        ScoreOptions const& options) {
  state_->prepare_to_read();
  return state_->evaluator.score(parts, source != nullptr ? *source : state_->loader.source(), options);
}
template <class P>
Score Trainer<P>::score_validation(ScoreOptions const& options) {
  state_->prepare_to_read();
  return state_->evaluator.score_validation(options);
}

template <class P>
std::vector<std::vector<int>> Trainer<P>::sample(std::vector<std::vector<int>> const& prompts,
                                                 SampleOptions const& options) {
  require_tokens(prompts, state_->rank.config.model.vocab_size);
  state_->prepare_to_read();
  return engine::sample(state_->rank, state_->memory, prompts, options);
}

template <class P>
void Trainer<P>::stop_when(std::function<bool()> asked) {
  state_->rank.stop.ask(std::move(asked));
}
template <class P>
bool Trainer<P>::stopped_early() const {
  return state_->rank.stop.early;
}

template <class P>
std::int64_t Trainer<P>::steps_done() const {
  return state_->steps_done;
}
template <class P>
std::int64_t Trainer<P>::tokens_done() const {
  return state_->tokens_done;
}
template <class P>
void Trainer<P>::set_steps_done(std::int64_t steps, std::optional<std::int64_t> tokens) {
  auto& s = *state_;
  s.end.forget_opening();
  s.steps_done = steps;
  s.tokens_done = tokens ? *tokens : s.loader.sampler().tokens_before(steps * s.rank.config.batch.global);
}

template <class P>
optim::LossScaleState const& Trainer<P>::loss_scale() const {
  return state_->end.loss_scaler().state();
}
template <class P>
void Trainer<P>::set_loss_scale(optim::LossScaleState const& state) {
  state_->end.loss_scaler().set_state(state);
}

template <class P>
std::int64_t Trainer<P>::versions_made() const {
  return state_->memory.versions_made();
}

template <class P>
void Trainer<P>::set_versions_made(std::int64_t updates) {
  state_->memory.set_versions_made(updates);
}

template <class P>
void Trainer<P>::require_finite_weights() {
  state_->end.require_finite_weights(state_->steps_done);
}

template <class P>
void Trainer<P>::forget_compression() {
  for (auto& [number, unit] : state_->memory.units())
    if (unit->compressor) unit->compressor->forget(state_->rank.exec);
}

template <class P>
std::vector<io::CheckpointPart> Trainer<P>::checkpoint_parts(config::StateArrays arrays) {
  state_->end.settle();
  return engine::checkpoint_parts(state_->rank, state_->memory, arrays);
}

template <class P>
void Trainer<P>::set_hooks(TrainerHooks<P> hooks) {
  state_->end.forget_opening();
  state_->end.set_hooks(std::move(hooks));
}
template <class P>
PostValidation Trainer<P>::post_validation() const {
  return state_->end.post_validation();
}
template <class P>
std::vector<ExpertLoad> Trainer<P>::expert_load() {
  return state_->balance.loads();
}
template <class P>
plan::MemoryPrediction Trainer<P>::memory_in_use() const {
  return state_->memory.in_use();
}
template <class P>
PhaseTimes Trainer<P>::times() const {
  auto t = state_->executor.times();
  // Loading and the executor itself take what is left of the time inside step().
  t[Phase::other] += std::max(0.0, state_->elapsed - t.total());
  return t;
}
template <class P>
std::vector<Timer> Trainer<P>::timers() const {
  auto const& s = *state_;
  auto const level = s.rank.config.timers.level;
  if (level == 0) return {};
  std::vector<Timer> out{{"step", s.elapsed, s.steps_run}};
  auto const phases = times();
  for (std::size_t i = 0; i < num_phases; ++i) {
    auto const phase = static_cast<Phase>(i);
    out.push_back({name(phase), phases[phase], s.steps_run});
  }
  if (level == 1) return out;
  auto const& actions = s.executor.action_times();
  for (std::size_t i = 0; i < schedule::num_ops; ++i) {
    auto const op = static_cast<schedule::Op>(i);
    auto const word = fmt::format("action {}{}", op == schedule::Op::stage_step ? "<stage>" : "", schedule::word(op));
    out.push_back({word, actions.seconds[i], actions.calls[i]});
  }
  return out;
}
template <class P>
void Trainer<P>::record_into(Recorder* recorder) {
  if (state_->rank.plan.stream) state_->end.forget_opening();
  state_->executor.record_into(recorder);
}
template <class P>
Inspection<P>& Trainer<P>::inspection() {
  return state_->inspection;
}

template <class P>
config::Config const& Trainer<P>::config() const {
  return state_->rank.config;
}
template <class P>
RunPlan const& Trainer<P>::plan() const {
  return state_->rank.plan;
}
template <class P>
data::TokenSource const& Trainer<P>::source() const {
  return state_->loader.source();
}
template <class P>
data::Sampler const& Trainer<P>::sampler() const {
  return state_->loader.sampler();
}
template <class P>
comm::Mesh& Trainer<P>::mesh() {
  return state_->rank.mesh;
}

#define P3D_INSTANTIATE(P) template class Trainer<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
