// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inside of Trainer, shared by the files that implement it.

#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/model/stage.hpp>
#include <p3d/optim/loss_scale.hpp>
#include <p3d/optim/optimizer.hpp>
#include <p3d/parallel/gradients.hpp>
#include <p3d/engine/executor.hpp>
#include <p3d/engine/trainer.hpp>

#include "activation_store.hpp"
#include "batch_loader.hpp"
#include "device_sums.hpp"
#include "evaluator.hpp"
#include "offloaded_state.hpp"
#include "sharded_weights.hpp"
#include "vocabulary_actions.hpp"

#include <array>
#include <deque>
#include <optional>

namespace p3d::engine {

/// How all communicators of training sum.
inline comm::AllReduceSettings all_reduce_settings(config::Config const& c, bool nccl = false) {
  return {c.comm.allreduce, c.run.deterministic, nccl};
}

/// Everything one stage needs on this rank.
template <class P>
struct StageUnit {
  comm::SharedBuffer gradients_memory, values_memory;  ///< none where nobody else reads them, or they lie in a pool
  model::Parameters<P> params;
  std::unique_ptr<model::WeightProvider<P>> weights;
  ShardedWeights<P>* sharded = nullptr;  ///< the same, where replicas divide the state
  model::Stage<P> stage;
  device::Owned1<device::bfloat16> gradient_wire;  ///< empty unless precision.reduction asks for it
  parallel::GradientReducer<typename P::Gradient> reducer;
  std::unique_ptr<optim::Optimizer<P>> optimizer;
  optim::StateMemory<P> state;                 ///< of the optimizer, where it is resident
  std::optional<OffloadedState<P>> offloaded;  ///< where memory.offload_optimizer or offload_parameters is set

  StageUnit(config::Config const& c, RunPlan const& plan, int number, layout::PerAxis coordinates,
            parallel::TensorParallel& tp, device::Arena& arena, model::StageScratch<P> scratch,
            std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
            parallel::ReplicaGroups const& groups, ProviderFactory<P> const& provider,
            typename model::Parameters<P>::Memory pooled, StageUnit const* lender);
  bool reduced_before = false;  ///< in this step
};

template <class P>
struct Trainer<P>::State {
  config::Config config;
  RunPlan plan;
  comm::Mesh mesh;
  layout::PerAxis here;  ///< this rank's coordinates
  BatchLoader loader;
  Evaluator evaluator;
  device::ExecSpace exec{};
  parallel::TensorParallel tp;
  parallel::ContextParallel context;
  parallel::ExpertParallel experts;
  bool nccl = false;                                    ///< comm.backend, along comm.backend_axes
  comm::Communicator own_group, between_groups;         ///< of replicas, with hybrid sharding
  comm::SharedBuffer weights_memory, gradients_memory;  ///< of the pools
  comm::SharedBuffer activations_memory;                ///< none without tensor parallelism
  std::optional<device::Arena> weights_pool, gradients_pool;
  std::optional<device::SwapFile> swap;
  std::optional<typename OffloadedState<P>::Staging> staging;
  std::optional<typename ShardedWeights<P>::Rooms> rooms;
  device::Owned1<double> sums{"p3d::engine::sums",
                              2};              ///< of this rank, and of this step: losses, squares of gradients
  std::optional<device::Arena> arena;          ///< these four, and `units`, once they are allocated
  std::deque<model::Workspace<P>> workspaces;  ///< of all actions, or of forwards and of backwards
  comm::Communicator
      tie_group;        ///< the ranks of the first and of the last stage, where a tied embedding is on two ranks
  comm::Request tie{};  ///< the sum of its gradient over the two
  std::map<int, std::unique_ptr<StageUnit<P>>> units;  ///< by stage
  std::optional<ActivationStore<P>> activation_store;  ///< where memory.offload_activations moves something
  std::optional<model::VocabularyPart<P>> part;        ///< where the vocabulary is divided over the pipeline; and
  VocabularyCommunicators part_communicators;
  std::optional<VocabularyActions<P>> part_actions;
  std::optional<Executor<P>> executor;
  std::function<bool()> stop_asked;  ///< empty: never
  bool stopped_early = false;        ///< the last evaluation or sample
  std::int64_t steps_done = 0;
  std::int64_t tokens_done = 0;  ///< inputs of the samples of these steps
  optim::LossScaler loss_scaler;
  bool master_is_newer = true;  ///< than what layers read: at the start, and after a checkpoint was copied in
  std::string spoilt;           ///< see spoil_gradient()
  bool summed_up = false;       ///< in this step, or at least begun to
  std::array<double, 4> sum{};  ///< of all ranks when it has come: losses, squares of gradients, stops, votes
  comm::Request sum_request;
  schedule::Opening opening;     ///< of plan.training; none without optimizer.post_validation
  bool another_follows = false;  ///< see step()
  bool tried_out = false;        ///< the update of this step, and it is not known yet whether it stands
  bool last_fitted = false;      ///< the gradient of the last step: finite and not clipped, as far as is known
  PostValidation post_validation;
  bool keep_gradients = false;       ///< after the update
  bool gradients_are_zero = true;    ///< as allocated, and after an update that does not keep them
  double elapsed = 0.0;              ///< seconds inside step()
  std::int64_t counted_targets = 0;  ///< whose mean the loss of this step is, in the global batch

  State(config::Config const& c, RunPlan run_plan, comm::Communicator const& parent,
        ProviderFactory<P> const& provider);

  /// Takes this rank's memory. Local.
  void allocate(ProviderFactory<P> const& provider);
  comm::Communicator& along(layout::AxisSet axes);
  /// Whether this rank's loss counts: of ranks that see the same tokens only the first one's does. All of them know the
  /// loss of the whole group.
  bool counts_loss() const { return here.zero(layout::stage_axes.minus(layout::token_axes)); }
  std::int64_t tokens_per_step() const { return config.batch.global * config.model.seq_len; }
  parallel::ExpertParallel expert_parallel();
  /// Makes the ways of reduction ready; returns the memory for the activations that are reduced.
  comm::SharedBuffer prepare_reductions();
  /// Whether any rank was asked to stop. Collective where stop_when() was called.
  bool stop_together();
  /// Where the vocabulary is divided over the pipeline: its communicators and actions. Collective.
  void divide_vocabulary();
  Hooks training_hooks(StepResult& result);
  /// What forwards of these samples ask for.
  Hooks loading_hooks(SampleSource const& samples);
  void reduce(int stage);
  /// Waits for other ranks during the update.
  void wait_recorded(comm::Request& request);
  /// Both copies of a tied embedding get the sum of their gradients.
  void finish_tie();
  /// Loss, gradient norm and the stop flag are summed over the ranks, and checked. Once a step: begun by the first
  /// update.
  void start_sum(double votes);
  void finish_sum(StepResult& result);
  /// Updates the parameters of a stage (-1: of all).
  void update(int stage, StepResult& result);
  /// Whether to update before the sum is there: only where it is likely to need no other update. The same on all ranks.
  bool tries_out() const { return config.optimizer.post_validation && another_follows && last_fitted; }
  /// After an update that was tried out: opens the next step and finishes the sum; if the update was wrong, all becomes
  /// as if the step had waited.
  void validate(StepResult& result);
  /// Weights and moments become what they were before the update that was tried out, and no step is opened.
  void take_back();
  /// Before anything but the next step runs. Collective where one was opened.
  void forget_opening();
  /// Before weights are read for anything but a step.
  void prepare_to_read() {
    forget_opening();
    refresh_weights();
  }
  /// The losses that a program has added up on this rank, which begins anew.
  double take_loss() { return take_sums()[0]; }
  std::vector<double> take_sums() {
    comm::settle();
    return kernels::take_sums(exec, sums);
  }
  /// After a step: the choices of experts in the whole global batch, and what follows from them: the biases that
  /// balance experts (arXiv 2408.15664) and the loads that a loss of balance reads. Collective.
  void balance_experts();
  void follow_choices();
  std::map<std::int64_t, std::vector<std::int64_t>> chosen;  ///< by layer: tokens of the last step by expert
  bool skipped_update = false;                               ///< in this step
  model::RouteTap routes;                                    ///< see record_routes()
  /// Layers read weights rounded from the master weights, after these were loaded. Before the first action of anything.
  void refresh_weights();
  /// Steps that updated the weights.
  std::int64_t updates_done() const { return steps_done - loss_scaler.state().skipped; }
  /// Skips the update, or throws where that would not help.
  void overflowed(StepResult& result);
  /// The first bad tensor in model order, in words.
  std::string find_not_finite();
  /// See spoil_gradient(). Before the gradients of parameters [first, last) of a stage are reduced.
  void spoil(int stage, std::size_t first, std::size_t last);
  std::vector<double> gather(std::string const& name, bool gradient);
  bool divides() const { return config.memory.divides(); }
  /// The communicators of hybrid sharding, where memory.shard_over asks for it. Collective.
  void make_replica_groups();
  parallel::ReplicaGroups replica_groups() {
    return own_group.valid() ? parallel::ReplicaGroups{&own_group, &between_groups} : parallel::ReplicaGroups{};
  }
  /// Takes the room for what memory.offload_optimizer and offload_parameters move away, and moves it there.
  void offload_state();
  /// Takes the room for memory.offload_activations.
  void offload_activations();
  /// Calls visit(run, master weights) for all that a stage's unit owns.
  template <class Visit>
  void for_master(StageUnit<P>& unit, Visit const& visit) {
    auto const& shard = unit.params.shard();
    if (unit.offloaded && unit.offloaded->parts().master) {
      unit.offloaded->stream(exec, *staging, shard, {.master = true}, {},
                             [&](layout::OwnedRun const& run, auto const& views) { visit(run, views.master); });
    } else {
      for (auto const& run : shard.owned) visit(run, unit.params.master(run));
    }
  }
  /// The gradients of a tied embedding that a stage's ranks own.
  device::View1<typename P::Gradient> tied_gradient(StageUnit<P>& unit);
  void start_tie(StageUnit<P>& unit);
};

}  // namespace p3d::engine
