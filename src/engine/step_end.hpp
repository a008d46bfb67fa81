// SPDX-License-Identifier: Apache-2.0
#pragma once
// The end of a step: from whole gradients of this rank to updated weights. In the order in which it is read: gradients
// are summed over replicas, and over the two stages of a tied embedding; loss and norm are summed over all ranks; the
// loss scale says whether the update is skipped; the optimizer updates what the rank owns.
//
// With optimizer.post_validation the update does not wait for the norm where the last one was not clipped (arXiv
// 2401.10241, section 4): it is tried out, the forwards that open the next step run, and then the norm decides whether
// the update stands. Example: the norm of step 7 is to be clipped. Weights and state become those of step 6, the update
// is made with clipped gradients, and the opening of step 8 is forgotten, so that it runs again.

// Without a flush between steps (schedule/stream.hpp) nobody waits for the norm either: gradients move to where they
// wait, the rank goes on, and the update is made when the next step but one is about to read it. Example: rank 3 ends
// step 7 long before rank 0. It begins to sum, works on step 8, and updates when microbatch 0 of step 9 comes.
//
// Where delays differ (pipeline.delays) nothing is clipped, and the update is made at once; sums of several steps are
// on their way. Example: with delays 3, 2, 1 and 0 the loss of step 7 is known at the end of step 11.

#include <p3d/optim/loss_scale.hpp>
#include <p3d/schedule/opening.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch_loader.hpp"
#include "rank_memory.hpp"

namespace p3d::engine {

/// All that it is given must outlive it.
template <class P>
class StepEnd {
public:
  /// Collective.
  StepEnd(RankContext& rank, BatchLoader& loader, RankMemory<P>& memory, Executor& executor);
  StepEnd(StepEnd const&) = delete;
  StepEnd& operator=(StepEnd const&) = delete;

  /// Before the program of a step, whose loss is the mean over targets.front() tokens, and those of the blocks of
  /// multi-token prediction the means over the others. `another_follows` as in Trainer::step. `flows`: the next step
  /// begins before this one has ended.
  void begin(StepResult const& step, std::vector<std::int64_t> targets, bool another_follows, bool flows = false);
  /// Finishes the sum of a stage's gradients over replicas, for a REDUCE of the program.
  void reduce(int stage);
  /// Updates the parameters of a stage (-1: of all), for a STEP of the program. The first update of a step sums loss
  /// and norm, which it waits for unless it is tried out.
  void update(int stage, StepResult& result);
  /// Makes the update that still waits for the norm of the step before, if one does. It does not throw where the norm
  /// is not finite: other ranks may still wait for what this one sends.
  void complete();
  /// Makes that update where all ranks come to. Throws as Trainer::step; microbatches of the next step are given up
  /// then. Collective where an update waits.
  void settle();
  /// Whether hooks and tests let the next step begin before this one has ended. A hook that is given all gradients, or
  /// weights, may wait for other ranks, which may wait for messages of this one.
  bool may_flow() const { return !hooks_.param_sync && !hooks_.finalize_model_grads && !keep_gradients_; }
  /// The steps whose loss and norm have become known since the last call, in their order.
  std::vector<StepResult> take_results() { return std::exchange(results_, {}); }
  /// Has take_results(), which was just called, return these once more.
  void give_back(std::vector<StepResult> results) { results_ = std::move(results); }
  /// After the program: where the update was tried out, opens the next step and waits for the norm. If the update was
  /// wrong, all becomes as if the step had waited.
  void finish(StepResult& result);

  /// Takes the calls of the user; those of Trainer::set_hooks, which says what it throws.
  void set_hooks(TrainerHooks<P> hooks);
  /// The factor that hooks put on the loss of this step.
  double grad_scale(std::int64_t step) const;

  /// Forgets the forwards of the next step that have run, before anything but that step. Collective where some have.
  void forget_opening();
  /// Rounds the weights that layers read where the master weights are newer. Before the first action of anything.
  void refresh_weights(std::int64_t steps_done);

  /// Throws base::Error (not_finite), on every rank, where a weight is not finite; see Trainer. Collective.
  void require_finite_weights(std::int64_t steps_done);

  /// Steps that updated the weights.
  std::int64_t updates_of(std::int64_t steps_done) const { return steps_done - loss_scaler_.state().skipped; }
  bool skipped_update() const { return skipped_update_; }
  optim::LossScaler& loss_scaler() { return loss_scaler_; }
  PostValidation const& post_validation() const { return post_validation_; }
  /// Says whether the gradients stay after the following updates.
  void keep_gradients(bool keep) { keep_gradients_ = keep; }
  bool gradients_are_zero() const { return gradients_are_zero_; }

private:
  /// Begins the next sum of a stage's gradients, which a hook may put off.
  void begin_reduction(int stage);
  /// Gives finalize_model_grads the gradients of this rank.
  void finalize_gradients();
  /// Gives param_sync the weights of a stage (-1: of all) that were updated.
  void synchronise_weights(int stage, std::int64_t update);
  /// The whole gradients of the step that ends: where they wait, or where layers add to them.
  device::View1<typename P::Gradient> gradients(StageUnit<P> const& unit) const;
  /// Whether this rank sums up only when the gradient of a tied embedding is whole, which it counts. The last stage
  /// does not count it, and waits for nobody.
  bool waits_for_tie() const;
  /// The gradients of a tied embedding that this stage's ranks own.
  device::View1<typename P::Gradient> tied_gradient(StageUnit<P>& unit);
  void start_tie(StageUnit<P>& unit);
  /// Tells the stages who sums their buckets, where that is not the reducer alone.
  void sum_buckets();
  /// Waits for gradients that were compressed.
  void finish_compressed();
  /// Gives both replicas of a tied embedding the sum of their gradients.
  void finish_tie();
  /// Begins to sum loss, squares of gradients, requests to stop and votes over the ranks.
  void start_sum(double vote);
  void finish_sum(StepResult& result);
  /// Waits for the sum; false: loss or norm are not finite.
  bool take_sum(StepResult& result);
  /// True when the update need not wait for the sum: where it is likely to be the right one. The same on all ranks.
  bool tries_out() const { return rank_->config.optimizer.post_validation && another_follows_ && last_fitted_; }
  /// Puts the gradients of the step aside and begins to sum; complete() updates.
  void put_aside(StepResult const& result);
  /// Begins to sum, and updates without the sum, which several steps may be waiting for: where delays differ, and
  /// nothing is clipped.
  void update_at_once(StepResult const& result);
  /// Takes the sums of steps whose update did not wait for them, but for those of the newest steps.
  void take_sums_but(std::size_t newest);
  /// Throws where the norm of a step was found not to be finite behind it. All ranks come here.
  void give_up_failed();
  /// Updates the parameters of a stage (-1: of all) with the gradients of this rank, or with those that waited.
  void apply(int stage, optim::UpdateStep const& step, bool waited);
  /// Undoes the update that was tried out, and forgets the opening that read its weights.
  void take_back();
  /// Skips the update, or throws where that would not help.
  /// `waited`: its gradients have waited for their norm.
  void overflowed(StepResult& result, bool waited = false);
  /// Waits for other ranks during the update.
  void wait(comm::Request& request);

  RankContext* rank_;
  BatchLoader* loader_;
  RankMemory<P>* memory_;
  Executor* executor_;
  comm::Communicator tie_group_;  ///< the ranks of the first and the last stage, where both have a tied embedding
  comm::Request tie_{};           ///< the sum of its gradient over the two
  optim::LossScaler loss_scaler_;
  TrainerHooks<P> hooks_;
  std::map<int, int> reductions_;      ///< sums of gradients in a step, by stage
  std::int64_t step_ = 0;              ///< the step under way; the first is 1
  double loss_scale_ = 1.0;            ///< factor on the loss of the step under way
  schedule::Opening opening_;          ///< forwards that may start early; none without optimizer.post_validation
  std::vector<std::int64_t> targets_;  ///< targets of this step's global batch that count, of the model and of blocks
  std::vector<std::int64_t> sum_targets_;  ///< the targets of the step that is summed up
  /// Over all ranks, when it has come: losses, squares of gradients, stops, votes, losses of multi-token prediction.
  std::vector<double> sum_;
  comm::Request sum_request_;
  bool summed_up_ = false;  ///< the sum of this step has begun
  bool another_follows_ = false;
  bool tried_out_ = false;       ///< the update of this step was made, and may have to be taken back
  bool last_fitted_ = false;     ///< the last gradient was finite and not clipped, as far as is known
  bool skipped_update_ = false;  ///< in this step
  bool keep_gradients_ = false;
  bool gradients_are_zero_ = true;  ///< as allocated, and after an update that does not keep them
  PostValidation post_validation_;
  bool flows_ = false;                 ///< the next step begins before this one has ended
  bool aside_ = false;                 ///< the gradients that are summed up are those that wait
  std::optional<StepResult> waiting_;  ///< the step whose update waits for its norm
  std::optional<StepResult> failed_;   ///< the first step whose norm came late and is not finite
  /// A step that was updated without its sum, which is on its way.
  struct Summed {
    StepResult result;
    std::vector<std::int64_t> targets;
    std::vector<double> sum;
    comm::Request request;
  };
  std::deque<Summed> summed_;
  std::vector<StepResult> results_;  ///< see take_results()
};

}  // namespace p3d::engine
