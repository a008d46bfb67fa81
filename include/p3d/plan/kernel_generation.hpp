// SPDX-License-Identifier: Apache-2.0
#pragma once
// Constants of a generation of kernels, which say what the software of a run does apart from GEMMs. They are the same
// on every machine.

#include <p3d/config/config.hpp>

#include <cstdint>
#include <string_view>

namespace p3d::plan {

/// One generation of training software.
struct KernelGeneration {
  std::string_view name;
  std::string_view help;
  bool fp8 = false;                ///< the linears of layers compute in fp8 where the device can
  double attention = 1;            ///< rate of attention's products, as a part of Cluster::attention
  bool flash = false;              ///< attention is one kernel, which skips what the causal mask hides
  double attention_backward = 2;   ///< time of attention's backward over that of its forward
  double score_bytes = 0;          ///< bytes that forward reads and writes for each score; 0: scores stay on the chip
  double score_backward = 1.5;     ///< bytes of backward for each score, over those of forward
  double traffic = 1;              ///< memory traffic of the other kernels, over the count of step_time.cpp
  double traffic_backward = 1.5;   ///< memory traffic of backward, over that of forward
  double launches = 0;             ///< kernels of a layer's forward
  double launches_backward = 0;    ///< kernels of a layer's backward
  double launches_collective = 0;  ///< more of them for each collective of tp
  double launches_head = 0;        ///< kernels of output layer and loss
  double launches_message = 0;     ///< kernels' worth of host time for a message between stages
  double overlap = 5.66;         ///< p of the norm (work^p + launches^p)^(1/p): how well launches hide behind the work
  double loss_bytes = 12;        ///< traffic of the loss for each logit, forward or backward
  bool divides_messages = true;  ///< a message between stages is divided over tp and gathered again
  bool overlaps_gradients = false;  ///< gradients are reduced, and parameters gathered, beside passes of other layers
  double shared_units = 0.05;       ///< the part by which passes are slower meanwhile
  double gradient_bytes = 2;        ///< bytes of an accumulated gradient
  double reduced_bytes = 2;         ///< bytes of a gradient on its way between replicas
  double optimizer_bytes = 30;      ///< traffic of the update for each parameter
  /// p3d itself on hosts: gradients travel, and are added up, in the types of the input, and memory is that of a host.
  bool host = false;
  std::int64_t vocab_multiple = 128;  ///< a rank's part of the vocabulary is padded to it; 1: what is left over is cut
};

/// The generation of that name; empty or "auto": `usual`, that of the cluster file. Throws base::Error (bad_input) with
/// `where` for another name.
KernelGeneration const& kernels_of(std::string_view name, std::string_view where,
                                   config::PlannedKernels usual = config::PlannedKernels::flash);

/// The generation with the bytes of gradients and of the update that an input has. Published runs are in 16 bits, for
/// which the generations have bytes of their own; inputs in fp32 and fp64, and all of p3d's, have those of their types.
KernelGeneration with_types(KernelGeneration kernels, config::Config const& config);

}  // namespace p3d::plan
