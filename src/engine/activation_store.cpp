// SPDX-License-Identifier: Apache-2.0
// Places for offloaded microbatches are offsets in the file, taken from a stage's list and given back when the
// microbatch returns. A slot's requests are waited for by whoever needs its memory next. Example: with one place,
// OFFLOAD_F of microbatch 0 starts a write; F of microbatch 1 in the same slot waits for it; RELOAD_F of microbatch 0
// starts a read into a free slot, and B of it waits for that one.
#include "activation_store.hpp"

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>

#include <utility>

namespace p3d::engine {

namespace {

using Bytes = Kokkos::View<std::byte*, device::MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

Bytes view(model::StageRegion const& region) { return Bytes(region.data, static_cast<std::size_t>(region.bytes)); }

template <class HostBytes>
HostBytes part(HostBytes const& all, std::int64_t begin, std::int64_t bytes) {
  return Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + bytes));
}

void wait(device::SwapFile::Request& request) {
  if (request.active()) request.wait();
}

}  // namespace

ActivationStore::ActivationStore(device::ExecSpace const& exec, device::SwapSettings settings, bool in_memory)
    : exec_(exec) {
  if (in_memory)
    host_ = HostBytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::offloaded_activations_pinned"),
                      static_cast<std::size_t>(settings.bytes));
  else
    file_.emplace(std::move(settings));
}

void ActivationStore::add(int number, StagePort& stage, int places, std::int64_t bytes) {
  auto& s = stages_[number];
  s.stage = &stage;
  for (int k = 0; k < places; ++k) s.free.push_back(used_ + k * (bytes / places));
  used_ += bytes;
}

void ActivationStore::offload(int stage, int slot, int microbatch, bool gradients) {
  auto& s = at(stage);
  P3D_REQUIRE(!s.free.empty(), "a stage has a place for every microbatch that is offloaded");
  auto const place = s.free.back();
  s.free.pop_back();
  s.offloaded[microbatch] = {place, s.stage->rows(slot)};
  auto const region = s.stage->offloaded(slot, gradients);
  auto& traffic = s.traffic[slot];
  // The slot's last write has mostly ended long ago. Its request must be over before another one takes its place.
  wait_read(stage, slot);
  traffic.writes_gradients = gradients;
  if (!file_) {
    Kokkos::deep_copy(exec_, part(host_, place, region.bytes), view(region));
    traffic.copied.emplace(exec_);
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

void ActivationStore::reload(int stage, int slot, int microbatch, bool gradients) {
  auto& s = at(stage);
  auto const returning = s.offloaded.extract(microbatch);
  P3D_REQUIRE(!returning.empty(), "what is reloaded was offloaded");
  auto const [place, rows] = returning.mapped();
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

bool ActivationStore::writes(int stage, int slot) {
  auto* const t = traffic(stage, slot);
  return t != nullptr && !t->is_written_out();
}

bool ActivationStore::writes_gradient(int stage, int slot) {
  auto* const t = traffic(stage, slot);
  return t != nullptr && t->writes_gradients && !t->is_written_out();
}

void ActivationStore::wait_written(int stage, int slot) {
  auto* const t = traffic(stage, slot);
  if (t == nullptr) return;
  wait(t->write);
  if (auto const copied = std::exchange(t->copied, {}); copied && !copied->reached())
    device::fence(exec_, "p3d::engine::offload_activations");
}

bool ActivationStore::reads(int stage, int slot) {
  auto* const t = traffic(stage, slot);
  return t != nullptr && (t->arrives.data != nullptr || !t->read.test());
}

void ActivationStore::forget_read(int stage, int slot) {
  auto* const t = traffic(stage, slot);
  if (t == nullptr) return;
  wait(t->read);
  t->arrives = {};
}

void ActivationStore::wait_read(int stage, int slot) {
  auto* const t = traffic(stage, slot);
  if (t == nullptr) return;
  wait(t->write);
  wait(t->read);
  if (auto const region = std::exchange(t->arrives, {}); region.data != nullptr)
    Kokkos::deep_copy(exec_, view(region), part(t->buffer, 0, region.bytes));
}

ActivationStore::HostBytes ActivationStore::buffer(Traffic& traffic, std::int64_t bytes) {
  if (static_cast<std::int64_t>(traffic.buffer.size()) < bytes)
    traffic.buffer =
        HostBytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::activation_buffer_background"),
                  static_cast<std::size_t>(bytes));
  return part(traffic.buffer, 0, bytes);
}

ActivationStore::OfStage& ActivationStore::at(int stage) {
  auto const found = stages_.find(stage);
  P3D_REQUIRE(found != stages_.end(), "a stage that offloads has places");
  return found->second;
}

ActivationStore::Traffic* ActivationStore::traffic(int stage, int slot) {
  auto const s = stages_.find(stage);
  if (s == stages_.end()) return nullptr;
  auto const t = s->second.traffic.find(slot);
  return t == s->second.traffic.end() ? nullptr : &t->second;
}

}  // namespace p3d::engine
