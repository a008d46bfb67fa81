// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activations that wait on a disk of the node, or in host memory, between forward and backward
// (memory.offload_activations). OFFLOAD_F and RELOAD_F (schedule/offload.hpp) start requests of one swap file, which
// carries them out in their order: a read into a slot that is still being written out follows that write. Where only
// kernels reach the slots (GPUs), a buffer of each slot in host memory stands between the two; in host memory itself
// (offload_activations = "host") there is no file, and copies follow the kernels in their order.

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/swap_file.hpp>
#include <p3d/engine/stage_port.hpp>

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace p3d::engine {

class ActivationStore {
public:
  /// `settings`: of a file of at least the sum of layout::offloaded_file_bytes() of all stages; `in_memory`: as much
  /// host memory instead.
  ActivationStore(device::ExecSpace const& exec, device::SwapSettings settings, bool in_memory = false) : exec_(exec) {
    if (in_memory) {
      host_ = HostBytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::offloaded_activations"),
                        static_cast<std::size_t>(settings.bytes));
    } else {
      file_.emplace(std::move(settings));
    }
  }

  /// Before the first action on a stage.
  void add(int number, StagePort& stage, int places, std::int64_t bytes) {
    auto& s = stages_[number];
    s.stage = &stage;
    for (int k = 0; k < places; ++k) s.free.push_back(used_ + k * (bytes / places));
    used_ += bytes;
  }

  /// Starts to write what the slot keeps of a microbatch.
  void offload(int stage, int slot, int microbatch, bool gradients) {
    auto& s = at(stage);
    P3D_REQUIRE(!s.free.empty(), "a stage has a place for every microbatch that is offloaded");
    auto const place = s.free.back();
    s.free.pop_back();
    s.away[microbatch] = {place, s.stage->rows(slot)};
    auto const region = s.stage->offloaded(slot, gradients);
    auto& traffic = s.traffic[slot];
    // Mostly done long ago. Of a row of stages that share a rank some are reloaded and not used: then nobody has
    // waited, and the next reload into this slot would give up a read that has not begun.
    wait_read(stage, slot);
    traffic.writes_gradients = gradients;
    if (!file_) {
      Kokkos::deep_copy(exec_, part(host_, place, region.bytes), view(region));
      traffic.copies = true;
      return;
    }
    auto const* from = region.data;
    if constexpr (!device::host_reaches_views) {
      Kokkos::deep_copy(exec_, buffer(traffic, region.bytes), view(region));
      from = traffic.buffer.data();
    }
    device::fence(exec_, "p3d::engine::offload_activations");
    traffic.write = file_->write(place, from, region.bytes);
  }

  /// Starts to read it back.
  void reload(int stage, int slot, int microbatch, bool gradients) {
    auto& s = at(stage);
    auto const away = s.away.extract(microbatch);
    P3D_REQUIRE(!away.empty(), "what is reloaded was offloaded");
    auto const [place, rows] = away.mapped();
    s.stage->resume(slot, rows, gradients);
    auto const region = s.stage->offloaded(slot, gradients);
    s.free.push_back(place);
    auto& traffic = s.traffic[slot];
    if (!file_) return Kokkos::deep_copy(exec_, view(region), part(host_, place, region.bytes));
    device::fence(exec_, "p3d::engine::reload_activations");
    auto* to = region.data;
    if constexpr (!device::host_reaches_views) {
      wait(traffic.write);  // from the same buffer
      to = buffer(traffic, region.bytes).data();
      traffic.arrives = region;
    }
    traffic.read = file_->read(place, to, region.bytes);
  }

  /// Whether a slot has something to wait for: until its memory may be used for another microbatch,
  bool writes(int stage, int slot) {
    auto* const t = traffic(stage, slot);
    return t != nullptr && (t->copies || !t->write.test());
  }
  /// Whether the buffer of the gradient is still to be written out.
  bool writes_gradient(int stage, int slot) {
    auto* const t = traffic(stage, slot);
    return t != nullptr && t->writes_gradients && (t->copies || !t->write.test());
  }
  void wait_written(int stage, int slot) {
    auto* const t = traffic(stage, slot);
    if (t == nullptr) return;
    wait(t->write);
    if (std::exchange(t->copies, false)) device::fence(exec_, "p3d::engine::offload_activations");
  }
  /// or until what was reloaded is there.
  bool reads(int stage, int slot) {
    auto* const t = traffic(stage, slot);
    return t != nullptr && (t->arrives.data != nullptr || !t->read.test());
  }
  void wait_read(int stage, int slot) {
    auto* const t = traffic(stage, slot);
    if (t == nullptr) return;
    wait(t->write);
    wait(t->read);
    if (auto const region = std::exchange(t->arrives, {}); region.data != nullptr)
      Kokkos::deep_copy(exec_, view(region), part(t->buffer, 0, region.bytes));
  }

  std::int64_t bytes() const { return file_ ? file_->bytes() : static_cast<std::int64_t>(host_.size()); }

private:
  /// Pinned: GPUs copy from and to it at the speed of the bus, while the host goes on.
  using HostBytes = Kokkos::View<std::byte*, device::PinnedSpace>;
  using Bytes = Kokkos::View<std::byte*, device::MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  struct Traffic {
    device::SwapFile::Request write, read;
    bool copies = false;            ///< copies to host memory may still run
    HostBytes buffer;               ///< between slot and file, where the file cannot reach the slot
    model::StageRegion arrives;     ///< the region that the buffer goes to once it is read
    bool writes_gradients = false;  ///< they are part of what is written
  };
  static Bytes view(model::StageRegion const& region) {
    return Bytes(region.data, static_cast<std::size_t>(region.bytes));
  }
  static HostBytes part(HostBytes const& all, std::int64_t begin, std::int64_t bytes) {
    return Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + bytes));
  }
  static HostBytes buffer(Traffic& traffic, std::int64_t bytes) {
    if (static_cast<std::int64_t>(traffic.buffer.size()) < bytes)
      traffic.buffer = HostBytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::activation_buffer"),
                                 static_cast<std::size_t>(bytes));
    return part(traffic.buffer, 0, bytes);
  }
  struct Away {
    std::int64_t place = 0;
    model::TokenRows rows;
  };
  struct OfStage {
    StagePort* stage = nullptr;
    std::vector<std::int64_t> free;  ///< places, as offsets in the file
    std::map<int, Away> away;        ///< offloaded activations of each microbatch
    std::map<int, Traffic> traffic;  ///< requests of each slot
  };

  OfStage& at(int stage) {
    auto const found = stages_.find(stage);
    P3D_REQUIRE(found != stages_.end(), "a stage that offloads has places");
    return found->second;
  }
  Traffic* traffic(int stage, int slot) {
    auto const s = stages_.find(stage);
    if (s == stages_.end()) return nullptr;
    auto const t = s->second.traffic.find(slot);
    return t == s->second.traffic.end() ? nullptr : &t->second;
  }
  static void wait(device::SwapFile::Request& request) {
    if (request.active()) request.wait();
  }

  device::ExecSpace exec_;
  std::optional<device::SwapFile> file_;
  HostBytes host_;  ///< in place of it
  std::map<int, OfStage> stages_;
  std::int64_t used_ = 0;
};

}  // namespace p3d::engine
