// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model of a step's time (p3d/plan/step_time.hpp). step_layers.cpp has the seconds of a layer, of the head and of
// the embedding; step_time.cpp puts stages, pipeline and replicas together.

#include <p3d/config/config.hpp>
#include <p3d/plan/machine_time.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/step_time.hpp>

#include <cstdint>
#include <vector>

#include "plan/layer_linears.hpp"
#include "plan/layer_time.hpp"
#include "plan/step_memory.hpp"

namespace p3d::plan {

/// A step of one input on one machine. It remembers in `memory` what the next layout of the model needs again.
class StepModel {
public:
  StepModel(config::Config const& c, config::Cluster const& cluster, KernelGeneration const& kernels,
            StepPredictor::Memory& memory);
  /// `simulated`: schedules whose formula is an estimate are simulated.
  StepTime predict(bool simulated);
  StepPredictor::RankParameters parameters();

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
  double roots(bool apart) const;
  double beside_layer_seconds() const;
  double message_seconds_between_stages() const;
  void find_kinds();
  template <class Of>
  double sum(Layers const& layers, Of const& of) const;
  template <class Of>
  double sum(RankLayers const& layers, Of const& of) const;
  /// The layers of each rank, those of blocks of multi-token prediction with the last.
  std::vector<RankLayers> layers_of_ranks() const;
  bool streams() const;
  double bubble_seconds(double longest, double all, double head, double embedding) const;
  double simulated_bubble(config::Config const& config, PipelinePlan const& plan, double longest, double head,
                          double embedding) const;
  /// Stages of a rank.
  int chunks() const;
  double data_seconds(RankLayers const& layers, double parameters, double expert_parameters) const;

  config::Config const& c_;
  config::Cluster const& cluster_;
  KernelGeneration k_;
  double peak_ = 0;        ///< operations per second of 16 bits, or of run.precision
  bool fp8_ = false;       ///< linears of layers compute in fp8
  double bytes_ = 2;       ///< bytes of a number that layers store
  double tokens_ = 0;      ///< tokens of a microbatch on a rank
  double width_ = 0;       ///< model.hidden
  double gates_ = 1;       ///< matrices of the MLP before its activation
  double vocabulary_ = 0;  ///< rows of the head on a rank
  double embedding_ = 0;   ///< rows of the embedding on a rank that has it
  double microbatches_ = 1;
  config::PerAxis strides_;  ///< ranks between neighbours along an axis of the mesh (parallel.order)
  StepPredictor::Memory& memory_;
};

}  // namespace p3d::plan
