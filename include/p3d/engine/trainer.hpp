// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's part of a training run as an object: mesh, stages, optimizer; one call is one step. The loop around it,
// with its files and log lines, is run.hpp.

#include <p3d/comm/mesh.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/optim/loss_scale.hpp>
#include <p3d/engine/inspection.hpp>
#include <p3d/engine/phases.hpp>
#include <p3d/engine/recorder.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/engine/trainer_hooks.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace p3d::engine {

/// The result of one step, the same on every rank.
struct StepResult {
  std::int64_t step = 0;    ///< number of steps done, this one included
  std::int64_t tokens = 0;  ///< inputs of the global batch
  double loss = 0.0;        ///< mean cross entropy in nats over the targets of the global batch, at the weights that
                            ///< the step read; those that data.eod_mask_loss masks do not count
  double mtp_loss = 0.0;    ///< the mean of the losses of the blocks of multi-token prediction, which `loss` leaves out
  double grad_norm = 0.0;   ///< global L2 norm of the gradient, before clipping
  double lr = 0.0;
  bool stop = false;        ///< some rank was asked to stop (stop_when)
  double votes = 0.0;       ///< sum over the ranks of what they gave to step()
  double loss_scale = 1.0;  ///< factor on the loss in this step's backward pass
  std::string overflow;     ///< the gradients overflowed and the update was skipped: where; else empty
  bool skipped() const { return !overflow.empty(); }
};

/// optimizer.post_validation: steps whose update was made before the norm of their gradients was known, and how many
/// of these were taken back because it had to be clipped or was not finite.
struct PostValidation {
  std::int64_t tried_out = 0, taken_back = 0;
};

/// How the tokens of the last step chose among the experts of one layer.
struct ExpertLoad {
  std::int64_t layer = 0;
  std::vector<std::int64_t> tokens;  ///< by expert, those beyond its capacity left out
  /// The busiest expert's over the mean, and the entropy of the shares over that of even ones.
  double busiest() const;
  double entropy() const;
};

/// How tokens are drawn from the model.
struct SampleOptions {
  std::int64_t tokens = 0;   ///< at most, of each text
  double temperature = 1.0;  ///< 0: the most likely token
  std::int64_t top_k = 0;    ///< only the k most likely tokens; 0: all
  double top_p =
      1.0;  ///< only the most likely tokens that together reach this probability (Holtzman et al. 2020, nucleus)
  std::uint64_t seed = 1;
  std::int64_t vocabulary = 0;   ///< only tokens below this; 0: all
  std::vector<int> stop_tokens;  ///< end a text, and belong to it
  /// Whether text `number`, to which `drawn` was added, is complete: asked on all ranks, for the same answer. Empty:
  /// no.
  std::function<bool(std::size_t number, std::vector<int> const& drawn)> complete;
  /// Is told, on every rank, the logits that the next token of text `number` is drawn from. Empty: they stay where they
  /// are.
  std::function<void(std::size_t number, std::span<double const> logits)> observe;
  std::int64_t batch = 16;  ///< texts of a replica that grow at the same time
};

/// A mean cross entropy (nats), and the windows that it is of.
struct Score {
  double loss = 0.0;
  std::int64_t windows = 0;
};

/// Options of a score: its windows.
struct ScoreOptions {
  std::int64_t window = 0;  ///< tokens of a window, at most model.seq_len; 0: model.seq_len
  std::int64_t most = 0;    ///< so many windows, the first ones; 0: all
  /// Is told, on every rank, how many windows were read, of how many. Empty: nobody asks.
  std::function<void(std::int64_t read, std::int64_t of)> progress;
};

/// Makes the provider of a stage's weights, which lie in `params`; `whole`: the same as a stage reads them.
template <class P>
using ProviderFactory = std::function<std::unique_ptr<model::WeightProvider<P>>(int stage, model::Parameters<P>& params,
                                                                                model::StageWeights<P> whole)>;

/// The part of a trainer that does not depend on its types of numbers: what a run reads and sets between steps. Trainer
/// implements it.
class AnyTrainer {
public:
  virtual ~AnyTrainer() = default;

  virtual config::Config const& config() const = 0;
  virtual RunPlan const& plan() const = 0;
  virtual data::TokenSource const& source() const = 0;
  virtual data::Sampler const& sampler() const = 0;
  virtual comm::Mesh& mesh() = 0;

  /// Steps done, and the inputs of their samples; a checkpoint sets them. Without a number the inputs are counted
  /// (data::Sampler::tokens_before). Setting is collective with optimizer.post_validation and with RunPlan::stream.
  virtual std::int64_t steps_done() const = 0;
  virtual std::int64_t tokens_done() const = 0;
  virtual void set_steps_done(std::int64_t steps, std::optional<std::int64_t> tokens = {}) = 0;
  /// The state of the loss scale that a checkpoint keeps; set before the first step.
  virtual optim::LossScaleState const& loss_scale() const = 0;
  virtual void set_loss_scale(optim::LossScaleState const& state) = 0;
  /// This rank's parts of the arrays of a checkpoint: parameters, and these arrays of the optimizer's state, all that
  /// it has or all but the weights among them (config/optimizer_state.hpp), or none. Valid as long as the trainer;
  /// where gradients are late (optimizer.delay), until the next call of this or of step(), evaluate(), score(),
  /// sample().
  virtual std::vector<io::CheckpointPart> checkpoint_parts(config::StateArrays arrays) = 0;
  /// The number that a checkpoint keeps beside the versions of the weights (io::CheckpointHeader::versions_made). It is
  /// asked for and set behind their arrays.
  virtual std::int64_t versions_made() const = 0;
  virtual void set_versions_made(std::int64_t updates) = 0;
  /// Throws base::Error (not_finite), on every rank, where a weight is not finite or becomes infinite in the type that
  /// layers read; it names the first such tensor in model order. Such weights are good for nothing, so no checkpoint of
  /// them may take the place of a good one. A pass over the weights; collective.
  virtual void require_finite_weights() = 0;
  /// Forgets what comm.compress remembers, as at the start: before a checkpoint is read, which may have none of it.
  virtual void forget_compression() = 0;

  /// From now on the times of the actions of training go there, until it is null. It must live as long. Steps do not
  /// follow each other meanwhile; collective where they did.
  virtual void record_into(Recorder* recorder) = 0;
  /// Continues each prompt (tokens of the vocabulary, at least one) and returns what was drawn. Token i of text n is
  /// drawn with the counter-based number i of stream n and purpose "sample": the same texts under every layout up to
  /// rounding. Keys and values are kept (model/decoder.hpp), for which memory is taken: a token costs
  /// 2 (parameters + layers hidden length) FLOPs. When a text has model.seq_len tokens, the older half is forgotten
  /// and the rest read again. Replicas share the texts. Throws base::Error (bad_input) for a token outside the
  /// vocabulary.
  virtual std::vector<std::vector<int>> sample(std::vector<std::vector<int>> const& prompts,
                                               SampleOptions const& options) = 0;
};

/// P: a policy of device/precision.hpp.
template <class P>
class Trainer final : public AnyTrainer {
public:
  /// Collective over `parent`, whose size is the product of the axes. `config` is checked (config::parse_*); the plan
  /// and the data come from it. Throws base::Error, on every rank, when ranks do not hold the same input or data.
  Trainer(config::Config const& config, comm::Communicator const& parent);
  /// With a plan of another origin, for example a program made by hand: see make_run_plan. `provider`: who hands the
  /// stages their weights; empty: model::ResidentWeights, for which the program must leave the weights where they are.
  /// With a provider each step ends with a flush.
  Trainer(config::Config const& config, RunPlan plan, comm::Communicator const& parent,
          ProviderFactory<P> const& provider = {});
  /// Collective with optimizer.post_validation and with RunPlan::stream.
  ~Trainer() override;
  Trainer(Trainer const&) = delete;
  Trainer& operator=(Trainer const&) = delete;

  /// One training step. Throws base::Error with ExitCode::not_finite, on every rank, when the loss or the gradient norm
  /// is not finite; it names the step and the first bad tensor in model order. With a dynamic loss scale the update of
  /// such a step is skipped on every rank instead (StepResult::overflow), until the scale is at its floor. Learning
  /// rate and bias correction count the updates, the data the steps. `vote`: a number whose sum over the
  /// ranks comes back in the result (it travels with the loss).
  /// With optimizer.post_validation (arXiv 2401.10241, section 4) it does not wait for the global norm where the last
  /// one was not clipped: it updates as if this one were not either, and runs the forwards of the next step that come
  /// before any backward (schedule/opening.hpp). Then it waits; if the norm is to be clipped or is not finite, weights
  /// and moments become what they were, the update is done as it should be, and the forwards are done again. So when it
  /// returns all numbers are those of a step that waited, bit for bit. `another_follows`: false: the next step does
  /// not come next, so that its forwards would be in vain (as after the last of run.steps); the same on all ranks.
  StepResult step(double vote = 0.0, bool another_follows = true);
  /// Runs a step, as step() does, and returns the results that have become known, in their order: of this step; or,
  /// where steps follow each other without a flush (RunPlan::stream), of the one RunPlan::results_late() steps before.
  /// There a rank goes on with later steps before others have ended this one, unless `another_follows` is false: then
  /// all results come that are missing. All numbers are those of steps with a flush, bit for bit. steps_done() counts
  /// this step in any case. The norm of a step may turn out not to be finite in a later call of this, or in whatever
  /// comes in between; it throws then, and no result of a later step comes.
  std::vector<StepResult> advance(double vote, bool another_follows);
  /// Ends steps that follow each other: what has begun of the next one is given up, and done again. Returns the results
  /// that are known by now: with them, of all steps. Collective.
  std::vector<StepResult> drain();
  /// The results that are known and were not returned, because the call that would have returned them threw.
  std::vector<StepResult> late_results();
  /// From now on steps call these hooks. Collective with RunPlan::stream. Throws base::Error (bad_input) for one that
  /// does not go with the input; the same on all ranks.
  void set_hooks(TrainerHooks<P> hooks);
  PostValidation post_validation() const;
  /// `asked`: whether this rank was asked to stop; looked at in every step, and any rank's word is StepResult::stop on
  /// all. Also looked at before each batch of evaluate() and after each token of sample(), which then end early.
  void stop_when(std::function<bool()> asked);
  /// Whether the last evaluate() (which gave NaN) or sample() ended early; the same on all ranks.
  bool stopped_early() const;
  /// Reads this rank's share of the samples of step `step`, from 0. Throws base::Error (bad_input), on this rank alone,
  /// for a token that cannot be read: a run that asks early enough (steps_until_stop()) can still save its state. The
  /// same holds for check_evaluation(), which reads those of evaluate(batches). Both are local.
  void check_samples(std::int64_t step) const;
  void check_evaluation(std::int64_t batches) const;
  /// How many steps may read their samples before all ranks have heard that one, asked in the first of them
  /// (stop_when), wants to stop.
  std::int64_t steps_until_stop() const;
  /// Mean cross entropy over `batches` global batches of the validation split, without dropout. It and those below
  /// throw base::Error (bad_input), on every rank, when no target counts.
  double evaluate(std::int64_t batches);
  /// Mean cross entropy over the windows (and a target) that fit into these parts of the source, each once: the same
  /// under every layout. `source`: null: that of the configuration.
  Score score(std::vector<layout::Range> const& parts, data::TokenSource const* source = nullptr,
              ScoreOptions const& options = {});
  Score score(layout::Range tokens) { return score(std::vector<layout::Range>{tokens}); }
  /// Mean cross entropy over the validation split, each of its samples once: what evaluate() gives for as many. Windows
  /// have model.seq_len tokens; with batch.variable each is a sample of its own length.
  Score score_validation(ScoreOptions const& options = {});

  /// The loads of the last step, of the layers with experts in order. Collective.
  std::vector<ExpertLoad> expert_load();

  /// The object that only tests and small models ask for.
  Inspection<P>& inspection();

  /// Time by phase on this rank since construction.
  PhaseTimes times() const;
  /// The timers that timers.level asks for, since construction: steps and their phases; with 2 the kinds of actions
  /// too, "action F" and so on. The same names in the same order on every rank.
  std::vector<Timer> timers() const;
  /// The bytes that this rank has allocated, by the same purposes as the prediction; activations and workspace at their
  /// highest.
  plan::MemoryPrediction memory_in_use() const;

  config::Config const& config() const override;
  RunPlan const& plan() const override;
  data::TokenSource const& source() const override;
  data::Sampler const& sampler() const override;
  comm::Mesh& mesh() override;
  std::int64_t steps_done() const override;
  std::int64_t tokens_done() const override;
  void set_steps_done(std::int64_t steps, std::optional<std::int64_t> tokens = {}) override;
  optim::LossScaleState const& loss_scale() const override;
  void set_loss_scale(optim::LossScaleState const& state) override;
  std::vector<io::CheckpointPart> checkpoint_parts(config::StateArrays arrays) override;
  std::int64_t versions_made() const override;
  void set_versions_made(std::int64_t updates) override;
  void require_finite_weights() override;
  void forget_compression() override;
  void record_into(Recorder* recorder) override;
  std::vector<std::vector<int>> sample(std::vector<std::vector<int>> const& prompts,
                                       SampleOptions const& options) override;

private:
  struct State;
  std::vector<StepResult> run_step(double vote, bool another_follows, bool may_flow);
  std::unique_ptr<State> state_;
};

}  // namespace p3d::engine
