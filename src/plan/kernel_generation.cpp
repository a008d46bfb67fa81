// SPDX-License-Identifier: Apache-2.0
// The constants of the generations. Those of `unfused` are fitted on the calibration rows of benchmarks/plan/rows.csv
// (docs/plan.md says how); those of `flash` follow from counting what its kernels read and write, and no row grades
// them yet.
#include <p3d/plan/kernel_generation.hpp>

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/plan/memory.hpp>

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

namespace p3d::plan {
namespace {

constexpr KernelGeneration unfused{.name = "unfused",
                                   .help = "scores in memory; softmax, masks, biases and dropout in several kernels",
                                   .score_bytes = 12.4,
                                   .traffic = 0.62,
                                   .launches = 104,
                                   .launches_backward = 193,
                                   .launches_collective = 5,
                                   .launches_head = 148,
                                   .launches_message = 20};
/// Layers that were measured one by one and added up, so that stages do not wait for each other's host.
constexpr KernelGeneration profiled = [] {
  auto k = unfused;
  k.name = "profiled";
  k.help = "unfused, measured layer by layer and added up";
  k.launches_message = 0;
  k.vocab_multiple = 1;
  return k;
}();
constexpr KernelGeneration fused = [] {
  auto k = unfused;
  k.name = "fused";
  k.help = "scores in memory; softmax fused with scale and mask, bias with GeLU and with dropout";
  return k;
}();
constexpr KernelGeneration flash = [] {
  auto k = unfused;
  k.name = "flash";
  k.help = "attention in one kernel that skips masked blocks";
  k.attention = 2;
  k.flash = true;
  k.attention_backward = 2.9;
  k.score_bytes = 0;
  // Between what compiled and what eager kernels of norm, rotation and activation read and write: 1 and 1.65 forward,
  // 1.5 and 2 times that backward.
  k.traffic = 1.3;
  k.traffic_backward = 1.75;
  k.launches = 45;
  k.launches_backward = 90;
  k.launches_head = 60;
  k.launches_message = 10;
  k.overlaps_gradients = true;
  k.gradient_bytes = 4;
  return k;
}();
constexpr KernelGeneration fp8 = [] {
  auto k = flash;
  k.name = "fp8";
  k.help = "flash, with the linears of layers in fp8";
  k.fp8 = true;
  return k;
}();
/// p3d on hosts: attention is GEMMs of blocks, a launch is a call, and who copies bytes between ranks computes nothing
/// meanwhile. A layer has 25 kernels, forward and backward. The
/// memory traffic is that of four runs of 1 M to 35 M parameters on one machine, timed kernel by kernel.
constexpr KernelGeneration host = [] {
  auto k = flash;
  k.name = "host";
  k.help = "p3d on hosts";
  k.attention = 1;
  k.attention_backward = 1.8;
  k.traffic = 0.46;
  k.traffic_backward = 2.9;
  k.launches = 10;
  k.launches_backward = 15;
  k.launches_collective = 1;
  k.launches_head = 8;
  k.launches_message = 2;
  k.shared_units = 1;
  k.divides_messages = false;
  k.host = true;
  k.vocab_multiple = 1;
  return k;
}();
constexpr std::array generations{unfused, profiled, fused, flash, fp8, host};

}  // namespace

KernelGeneration const& kernels_of(std::string_view name, std::string_view where, config::PlannedKernels usual) {
  if (name.empty() || name == "auto") name = base::to_string(usual);
  std::vector<std::string> names;
  for (auto const& g : generations) {
    if (g.name == name) return g;
    names.emplace_back(g.name);
  }
  base::refuse("a generation of kernels: " + base::join(names), fmt::format("\"{}\"", name), std::string(where),
               "choose the one that the software is nearest to; flash is today's");
}

KernelGeneration with_types(KernelGeneration kernels, config::Config const& config) {
  if (config::is_16bit(config.run.precision) && !kernels.host) return kernels;
  auto const types = type_bytes(config);
  auto const gradient = static_cast<double>(types.gradient), master = static_cast<double>(types.master);
  kernels.gradient_bytes = gradient;
  kernels.reduced_bytes = reduces_narrow(config) ? 2 : gradient;
  // Reads the gradient twice (its norm, the update), the weight and the state, which it writes, too. Of the versions of
  // the weights it reads one.
  kernels.optimizer_bytes = 2 * gradient + 2 * master + 2 * static_cast<double>(state_bytes(config)) -
                            (config.latest_delay() > 0 ? master : 0) +
                            (types.has_master ? static_cast<double>(types.storage) : 0);
  return kernels;
}

}  // namespace p3d::plan
