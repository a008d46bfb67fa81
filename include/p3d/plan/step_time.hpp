// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time of a training step before it runs, from the input and from cluster.toml alone.
//
// The step is that of the rank that is last: its microbatches one after the other, the wait for the pipeline to fill,
// the reduction of gradients that nothing hides, the update. Each part is a sum of formulas (machine_time.hpp), so the
// prediction says why, not only how long. docs/plan.md has the formulas, their constants and their errors.

#include <p3d/config/cluster.hpp>
#include <p3d/config/config.hpp>
#include <p3d/plan/kernel_generation.hpp>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace p3d::plan {

/// The parts of a step. Their sum is the step.
enum class TimePart {
  gemm_forward,  ///< linears, forward and where they are remade
  gemm_input,    ///< linears, gradients of inputs
  gemm_weight,   ///< linears, gradients of weights
  attention,     ///< scores, softmax, weighted sum; forward, remade, backward
  memory,        ///< norms, activations, residuals; gradients of microbatches added up
  tensor,        ///< collectives over tp that nothing hides
  context,       ///< exchanges over cp that nothing hides
  experts,       ///< exchanges over ep that nothing hides
  launches,      ///< waits for the launch of kernels
  weights,       ///< gathering of divided weights, and reduction of their gradients, that nothing hides
  head,          ///< output layer and loss, or the embedding
  bubble,        ///< the pipeline fills and empties; stages of unequal length
  messages,      ///< between stages
  data,          ///< reduction and gathering over dp that nothing hides
  embeddings,    ///< sums of the embedding: of the first and the last stage, or over tp, where both read it
  optimizer,     ///< the update
  jitter         ///< the slowest of all ranks over the mean one
};
constexpr auto enum_names(TimePart) {
  return std::array{"gemm_forward", "gemm_input", "gemm_weight", "attention", "memory", "tensor",
                    "context",      "experts",    "launches",    "weights",   "head",   "bubble",
                    "messages",     "data",       "embeddings",  "optimizer", "jitter"};
}
inline constexpr std::size_t num_time_parts = 17;

/// A predicted step.
struct StepTime {
  std::array<double, num_time_parts> parts{};  ///< seconds, by TimePart
  double low = 0, high = 0;                    ///< the interval that contains nine of ten measured steps

  double& operator[](TimePart p) { return parts[static_cast<std::size_t>(p)]; }
  double operator[](TimePart p) const { return parts[static_cast<std::size_t>(p)]; }
  double seconds() const;
};

/// Predicts steps of one model: inputs that differ in [parallel], [batch], [pipeline] and [memory] alone. It keeps the
/// times of layers that several layouts share.
class StepPredictor {
public:
  StepPredictor(config::Cluster const& cluster, KernelGeneration const& kernels);
  ~StepPredictor();
  /// Predicts the step of a checked input. Throws base::Error (bad_input) where the device has no rate for
  /// run.precision.
  StepTime predict(config::Config const& config);
  /// True where the bubble of the input's pipeline has no formula: predict() simulates its program.
  static bool simulates(config::Config const& config);
  /// The step, or less: of a pipeline that would be simulated the step without its bubble.
  double least(config::Config const& config);
  /// Parameters of a rank of the pipeline.
  struct Parameters {
    double dense = 0, experts = 0;
    double roots = 0;            ///< embedding, and the head, where the rank has them
    double expert_replicas = 1;  ///< ranks that have the same experts
  };
  /// Parameters of ranks by which the memory of a layout is bounded.
  struct RankParameters {
    Parameters first;    ///< the first rank, with an even share of the layers, rounded down
    Parameters middle;   ///< a rank in the middle, likewise
    Parameters largest;  ///< the rank with most of the largest layers: an even share of these, rounded up
  };
  RankParameters parameters(config::Config const& config);

  struct Memory;

private:
  config::Cluster const& cluster_;
  KernelGeneration const& kernels_;
  std::unique_ptr<Memory> memory_;
};

/// Predicts one step.
StepTime predict_step(config::Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels);

/// Operations of a rank in a step, in the mean, with those of remade activations.
double operations_of_rank(config::Config const& config);

/// Memory of the rank that has most, in bytes: what `p3d --check` predicts on a GPU, or on a host with one thread.
double predicted_bytes(config::Config const& config, KernelGeneration const& kernels);

/// In words, by how much the step gets shorter per 1 % of each constant of the cluster: what to buy. The five constants
/// that matter most.
std::string sensitivity(config::Config const& config, config::Cluster const& cluster, KernelGeneration const& kernels);

/// The prediction in words: the step with its interval, tokens/s, MFU and HFU, memory, and a line for each part.
/// `bytes`: predicted_bytes().
std::string describe(config::Config const& config, config::Cluster const& cluster, StepTime const& time, double bytes);

/// The work of a step that predictions leave out, in words; "" where there is none.
std::string not_predicted(config::Config const& config);

}  // namespace p3d::plan
