// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls of a program that uses the library into a training step, at the places where Megatron Core's
// ModelParallelConfig has them: grad_scale_func, no_sync_func, grad_sync_func, finalize_model_grads_func and
// param_sync_func. Trainer::set_hooks takes them; the example tests/install/hooks uses them all.
//
// Order in one step, with what p3d does between them:
//
//   grad_scale            once, before the first forward that no step before has done (Trainer::advance)
//   no_sync               for each sum of a stage's gradients but the last of the step, before its first backward
//   grad_sync             for each bucket, in the backward that completes it; then p3d waits for all buckets
//   finalize_model_grads  once: all sums have come, those of tied embeddings too; norm and clipping follow
//   param_sync            for each update of weights, after it, with the newest of them; the next forward reads what it
//                         leaves, or where gradients are late a later one
//
// With finalize_model_grads or param_sync each step ends with a flush, whatever pipeline.flush says. All are called on
// the thread that calls Trainer::step or Trainer::advance, and on every rank. Ranks that sum the same bucket call
// grad_sync in the same order, so it may communicate among `replicas`; finalize_model_grads is called on all ranks
// once, so it may communicate among any. An exception of a hook leaves Trainer::step on that rank. Views are in the
// memory of the device. Work on them belongs on the trainer's stream, Kokkos' default instance.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/shards.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace p3d::engine {

/// Gradients that are complete on this rank and not yet summed over replicas: sums over its samples of the step (or of
/// those since the last sum, with memory.reduce = "microbatch"), times StepResult::loss_scale, over the number of
/// targets of the global batch. So their sum over replicas is the scaled gradient of the mean loss. P: a policy of
/// device/precision.hpp.
template <class P>
struct GradientBucket {
  int stage = 0;
  std::size_t bucket = 0;  ///< its number in shard->buckets
  layout::StageParams const* params =
      nullptr;  ///< the stage's parameters; items [first, last) of them are the bucket's
  layout::Bucket const* layout = nullptr;
  device::View1<typename P::Gradient> values;  ///< the numbers, which the sum replaces
  layout::StateShard const* shard = nullptr;   ///< the shard that says who owns which part of a bucket
  comm::Communicator* replicas = nullptr;      ///< the ranks that hold the same weights and see other tokens
};

/// A run of elements of a stage's flat buffer that this rank owns, with their numbers. layout::for_parameters says
/// which parameters lie in [run.begin, run.begin + run.count).
template <class T>
struct OwnedNumbers {
  int stage = 0;
  layout::StageParams const* params = nullptr;
  layout::OwnedRun run;
  device::View1<T> values;
};

/// Hooks that are empty are not called. All ranks set the same ones.
template <class P>
struct TrainerHooks {
  /// Factor on the loss in the backward of this step (the first is 1), besides precision.loss_scale. Norm and update
  /// divide by it; a power of two changes no bit but those of numbers that are too small or too large. It must be
  /// finite and positive, else Trainer::step throws, and the same on all ranks.
  std::function<double(std::int64_t step)> grad_scale;

  /// Whether this rank puts off sum `number` (from 0) of a stage's gradients in this step: they stay, and the next sum
  /// has them too. The answer must be the same on all ranks that sum the stage. There is more than one sum in a step
  /// with memory.reduce = "microbatch" only, which it therefore needs. A rank must have one stage: memory.shard_layers
  /// of at least its layers, and no virtual stages.
  std::function<bool(std::int64_t step, int stage, int number)> no_sync;

  /// Sums a bucket in place of p3d, or returns nothing: then p3d sums it. The request is waited for before the bucket
  /// is read; a default one is complete. Where memory.shard divides gradients, only the part of this rank
  /// (shard->parts[bucket]) is read.
  std::function<std::optional<comm::Request>(GradientBucket<P> const&)> grad_sync;

  /// Is given all gradients that this rank owns, which it may change. They are those of GradientBucket summed over
  /// replicas. All ranks that own an element must change it alike: replicas where memory.shard divides nothing, groups
  /// of replicas with memory.shard_over (OwnedRun::copy), and ranks of tp for what tp does not divide. A tied embedding
  /// on two stages is there on both. `targets`: targets of the global batch that count.
  std::function<void(std::span<OwnedNumbers<typename P::Gradient> const>, std::int64_t targets)> finalize_model_grads;

  /// Is given all weights that an update has just changed and this rank owns: master weights, or the weights
  /// themselves where the policy has none. It may change them, alike on all ranks that own them. Weights that are
  /// offloaded cannot be given: Trainer::set_hooks refuses it then.
  std::function<void(std::span<OwnedNumbers<typename P::Master> const>, std::int64_t update)> param_sync;
};

}  // namespace p3d::engine
