// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activations that wait on a disk of the node, or in host memory, between forward and backward
// (memory.offload_activations). OFFLOAD_F and RELOAD_F (schedule/offload.hpp) start requests of one swap file, which
// carries them out in their order: a read into a slot that is still being written out follows that write. Where only
// kernels reach the slots (GPUs), a buffer of each slot in host memory stands between the two; in host memory itself
// (offload_activations = "host") there is no file, and copies follow the kernels in their order.

#include <p3d/device/event.hpp>
#include <p3d/device/swap_file.hpp>
#include <p3d/device/view.hpp>
#include <p3d/engine/stage_port.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace p3d::engine {

class ActivationStore {
public:
  /// `settings`: of a file of at least the sum of layout::offloaded_file_bytes() of all stages; `in_memory`: as much
  /// host memory instead.
  ActivationStore(device::ExecSpace const& exec, device::SwapSettings settings, bool in_memory = false);

  /// Adds stage `number`, with room for `places` microbatches at a time in `bytes`, before the first action on it. Each
  /// place begins at a multiple of SwapFile::alignment.
  void add(int number, StagePort& stage, int places, std::int64_t bytes);

  /// Starts to write what the slot keeps of a microbatch.
  void offload(int stage, int slot, int microbatch, bool gradients);
  /// Starts to read it back.
  void reload(int stage, int slot, int microbatch, bool gradients);

  /// True while a slot is written out: its memory may not be used for another microbatch yet.
  bool writes(int stage, int slot);
  /// True while the buffer of the slot's gradient is written out.
  bool writes_gradient(int stage, int slot);
  /// Waits until the slot's memory may be used.
  void wait_written(int stage, int slot);
  /// True while what was reloaded is not in the slot yet.
  bool reads(int stage, int slot);
  /// Waits until what was reloaded is in the slot.
  void wait_read(int stage, int slot);
  /// Forgets what was reloaded into a slot that another microbatch takes now. Of stages in a row on one rank all slots
  /// of a microbatch are reloaded, and some are not read.
  void forget_read(int stage, int slot);

  std::int64_t bytes() const { return file_ ? file_->bytes() : static_cast<std::int64_t>(host_.size()); }

private:
  /// Pinned: GPUs copy from and to it at the speed of the bus, while the host goes on.
  using HostBytes = Kokkos::View<std::byte*, device::PinnedSpace>;
  struct Traffic {
    /// True until the file, or the copy to host memory, has all of the slot.
    bool is_written_out() { return (!copied || copied->reached()) && write.test(); }
    device::SwapFile::Request write, read;
    std::optional<device::Event> copied;  ///< the end of the copy to host memory
    HostBytes buffer;                     ///< between slot and file, where the file cannot reach the slot
    model::StageRegion arrives;           ///< the region that the buffer goes to once it is read
    bool writes_gradients = false;        ///< they are part of what is written
  };
  struct Offloaded {
    std::int64_t place = 0;
    model::TokenRows rows;
  };
  struct OfStage {
    StagePort* stage = nullptr;
    std::vector<std::int64_t> free;      ///< places, as offsets in the file
    std::map<int, Offloaded> offloaded;  ///< activations of each microbatch that are not in their slot
    std::map<int, Traffic> traffic;      ///< requests of each slot
  };

  static HostBytes buffer(Traffic& traffic, std::int64_t bytes);
  OfStage& at(int stage);
  Traffic* traffic(int stage, int slot);

  device::ExecSpace exec_;
  std::optional<device::SwapFile> file_;
  HostBytes host_;  ///< in place of it
  std::map<int, OfStage> stages_;
  std::int64_t used_ = 0;
};

}  // namespace p3d::engine
