// SPDX-License-Identifier: Apache-2.0
// "auto" and "on" differ in who is believed: "auto" tries only a library that says that it reaches GPU memory, "on"
// tries any, and ends the run when the trial fails.
#include "gpu_aware.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/view.hpp>
#include <p3d/engine/backend.hpp>

#include <fmt/format.h>

#include <cstring>

namespace p3d::run {

namespace {

using comm::GpuTrial;

/// GPU memory for a trial. It is never freed: comm::TrialMemory says why.
comm::TrialMemory trial_memory() {
  using Memory = device::Owned1<std::byte>;
  auto const& memory = *new Memory(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::run::gpu_trial"),
                                   static_cast<std::size_t>(comm::trial_bytes));
  auto const part = [&memory](std::int64_t bytes) { return device::View1<std::byte>(memory.data(), bytes); };
  using Host = Kokkos::View<std::byte*, Kokkos::LayoutRight, device::HostSpace>;
  auto const write = [part](void const* host, std::int64_t bytes) {
    Host const from("p3d::run::gpu_trial_host", static_cast<std::size_t>(bytes));
    std::memcpy(from.data(), host, from.extent(0));
    Kokkos::deep_copy(part(bytes), from);
  };
  auto const read = [part](void* host, std::int64_t bytes) {
    Host const to("p3d::run::gpu_trial_host", static_cast<std::size_t>(bytes));
    Kokkos::deep_copy(to, part(bytes));
    std::memcpy(host, to.data(), to.extent(0));
  };
  return {memory.data(), write, read};
}

}  // namespace

MessagePath message_path(PathQuestion const& q) {
  bool const asked = q.choice == config::GpuAware::on;
  if (q.choice == config::GpuAware::off) return {false, false, "comm.gpu_aware"};
  if (q.nccl) {
    if (!asked) return {false, false, "MPI is given no GPU memory beside NCCL"};
    base::warn_root(base::format({.expected = "one library at a time on a GPU",
                                  .found = "comm.gpu_aware = \"on\" beside NCCL: the two may wait for each other for "
                                           "ever, as NVIDIA's user guide says",
                                  .where = "comm.gpu_aware",
                                  .fix = "set comm.gpu_aware = \"auto\", or comm.backend = \"mpi\""}));
  }
  if (!asked && !q.reaches.value_or(false))
    return {false, false, q.reaches ? "MPI says that it does not reach GPU memory" : "MPI does not say what it can do"};
  auto const messages = q.try_messages();
  MessagePath path{messages == GpuTrial::works, false, std::string(comm::describe(messages))};
  if (!path.messages && asked) {
    base::refuse({.expected = "an MPI library that reaches GPU memory, as comm.gpu_aware = \"on\" says",
                  .found = fmt::format("{}: {}", q.library, path.reason),
                  .where = "comm.gpu_aware",
                  .fix =
                      "set comm.gpu_aware = \"auto\" or \"off\", or turn the library's GPU support on (MPICH: "
                      "MPIR_CVAR_ENABLE_GPU=1; Cray MPICH: MPICH_GPU_SUPPORT_ENABLED=1; Open MPI: build it with UCX)"});
  }
  if (path.messages && q.mpi_sums && !comm::is_open_mpi(q.library)) path.sums = q.try_sums() == GpuTrial::works;
  return path;
}

std::string choose_message_path(config::Config const& config, comm::Communicator& world) {
  if (device::on_host() || world.size() == 1) return "";
  // The trial has a communicator of its own, which stays: what is not over in time is still under way on it.
  comm::Communicator* trial = nullptr;
  auto const communicator = [&]() -> comm::Communicator& {
    if (trial == nullptr) trial = new comm::Communicator(world.mpi(), "trial of GPU memory");
    return *trial;
  };
  auto const path =
      message_path({.choice = config.comm.gpu_aware,
                    .nccl = config.comm.gpu_aware != config::GpuAware::off && engine::choose_nccl(config, world),
                    .reaches = comm::reaches_memory_of(device::backend_name()),
                    .library = comm::library_version(),
                    .mpi_sums = config.comm.allreduce == config::AllReduce::mpi,
                    .try_messages = [&] { return comm::try_messages(communicator(), trial_memory(), trial_memory()); },
                    .try_sums = [&] { return comm::try_sums(communicator(), trial_memory()); }});
  collectives::set_gpu_aware(path.messages, path.sums);
  return fmt::format("Messages: {} ({})",
                     path.sums       ? "MPI reads and writes GPU memory, and sums it in its own order"
                     : path.messages ? "MPI reads and writes GPU memory; its sums go through pinned host memory"
                                     : "through pinned host memory",
                     path.reason);
}

}  // namespace p3d::run
