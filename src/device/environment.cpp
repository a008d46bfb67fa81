// SPDX-License-Identifier: Apache-2.0
// The start of Kokkos: the number of threads and the GPU of this rank, unless the user chose them.
#include <p3d/device/environment.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/compat.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/view_layout.hpp>

#include <Kokkos_Core.hpp>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::device {

namespace {

/// True when the environment has one of the variables.
bool any_set(std::initializer_list<char const*> variables) {
  for (char const* name : variables) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

/// True when an argument begins with one of the options.
bool any_given(std::vector<char*> const& args, std::initializer_list<std::string_view> options) {
  for (std::string_view const arg : args) {
    for (auto const option : options) {
      if (arg.starts_with(option)) return true;
    }
  }
  return false;
}

}  // namespace

void require_gpu(VisibleGpus const& gpus) {
  if (!gpus.needed || gpus.count > 0) return;
  std::string found = "none";
  if (!gpus.problem.empty()) found += ": " + gpus.problem;
  for (char const* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}) {
    if (char const* const value = std::getenv(name)) found += std::string(", with ") + name + "=\"" + value + "\"";
  }
  base::refuse({.expected = std::string("a GPU that this process may use, as this p3d computes on GPUs (Kokkos' ") +
                            backend_name() + ")",
                .found = found,
                .where = "the start of a run",
                .fix = "ask for GPUs and start p3d on their node (Slurm: srun --gpus-per-node=4 p3d input.toml), and "
                       "leave CUDA_VISIBLE_DEVICES (AMD: ROCR_VISIBLE_DEVICES, Intel: ZE_AFFINITY_MASK) unset or "
                       "name a GPU in it; --version, --check, mesh and schedule need no GPU"});
}

Environment::Environment(int& argc, char** argv, int threads, int local_rank, VisibleGpus const& gpus) {
  require_gpu(gpus);
  std::vector<char*> args(argv, argv + argc);
  std::string const threads_text = std::string(threads_option) + "=" + std::to_string(threads);
  std::string const gpu_text = std::string(device_option) + "=";
  bool const chose_threads =
      any_set({"OMP_NUM_THREADS", "KOKKOS_NUM_THREADS"}) || any_given(args, {threads_option, "--threads"});
  bool const chose_gpu =
      any_set({"KOKKOS_DEVICE_ID", "KOKKOS_MAP_DEVICE_ID_BY"}) ||
      any_given(args, {device_option, "--kokkos-map-device-id-by", "--kokkos-ndevices", "--kokkos-num-devices"});
  std::vector<std::string> ours;
  if (!chose_threads && std::string_view(backend_name()) == "OpenMP") ours.push_back(threads_text);
  if (gpus.count > 0 && !chose_gpu) ours.push_back(gpu_text + std::to_string(local_rank % gpus.count));
  for (auto& text : ours) args.push_back(text.data());
  int count = static_cast<int>(args.size());
  args.push_back(nullptr);
  // Kokkos' warnings are switched off. Every rank would advise to bind its threads (several unbound ranks on a node
  // would then bind theirs to the same cores: p3d leaves that to the launcher) and, from 4.0 on, warn when ranks
  // outnumber cores: room report says that once, with what to do.
  setenv("KOKKOS_DISABLE_WARNINGS", "true", 0);
  Kokkos::initialize(count, args.data());
  guard_memory();
  if (on_host()) return;
  try {
    require_one_view_layout(view_facts_of_host_and_device());
  } catch (...) {
    Kokkos::finalize();
    throw;
  }
}

Environment::~Environment() { Kokkos::finalize(); }

int host_threads() { return Kokkos::DefaultHostExecutionSpace().concurrency(); }

char const* backend_name() { return Kokkos::DefaultExecutionSpace::name(); }

bool on_host() {
  return Kokkos::SpaceAccessibility<Kokkos::HostSpace, Kokkos::DefaultExecutionSpace::memory_space>::accessible;
}

}  // namespace p3d::device
