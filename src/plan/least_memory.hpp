// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bound of the memory of a layout that takes microseconds, before a check that takes milliseconds: the state of a
// rank, and activations of the layers and microbatches that it surely holds. No layout that fits may be above it.

#include <p3d/config/config.hpp>
#include <p3d/plan/kernel_generation.hpp>
#include <p3d/plan/step_time.hpp>

#include <cstdint>
#include <map>
#include <tuple>

namespace p3d::plan {

/// Bounds the memory of layouts of one model on one machine, and remembers what they share.
class LeastMemory {
public:
  /// Both must outlive the object.
  LeastMemory(StepPredictor& predictor, KernelGeneration const& kernels) : predictor_(predictor), kernels_(kernels) {}
  /// Bytes that the rank with most needs at least.
  double bytes(config::Config const& config);

private:
  /// Bytes of a layer, from the table of buffers.
  struct LayerBytes {
    double layer = 0;      ///< added for each microbatch in flight by one more layer: the least of all layers
    double stage = 0;      ///< added for each microbatch in flight by a stage, besides its layers
    double workspace = 0;  ///< of a rank that has the largest layers, and its part of a divided vocabulary
  };
  LayerBytes const& layer_bytes(config::Config const& config);

  StepPredictor& predictor_;
  KernelGeneration const& kernels_;
  std::map<std::tuple<int, int, int, int, int, std::int64_t>, LayerBytes> layer_bytes_;
};

}  // namespace p3d::plan
