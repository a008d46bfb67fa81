// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moments and master weights that wait elsewhere between updates (memory.offload_optimizer): an update streams through
// them in pieces; while one is computed the next is read and the one before is written.

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/offloaded_array.hpp>
#include <p3d/layout/shards.hpp>
#include <p3d/optim/optimizer.hpp>

#include <array>
#include <vector>

namespace p3d::engine {

/// Room for one piece of an array, where kernels reach it and where files and host memory do.
template <class T>
class StagedPiece {
public:
  static constexpr std::int64_t elements = device::OffloadedArray<T>::piece;

  StagedPiece() = default;
  explicit StagedPiece(std::int64_t n)
      : host_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::staged"), static_cast<std::size_t>(n)) {
    if constexpr (!device::host_reaches_views)
      device_ = device::Owned1<T>(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::staged_device"),
                                  static_cast<std::size_t>(n));
  }
  T* host() const { return host_.data(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(host_.size() * sizeof(T)); }
  device::View1<T> view(std::int64_t begin, std::int64_t count) const {
    if constexpr (device::host_reaches_views) {
      return device::View1<T>(host_.data() + begin, count);
    } else {
      return Kokkos::subview(device_, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + count));
    }
  }
  void to_kernels(std::int64_t n) const {
    if constexpr (!device::host_reaches_views) copy(device_, host_, n);
  }
  void to_host(std::int64_t n) const {
    if constexpr (!device::host_reaches_views) copy(host_, device_, n);
  }

private:
  template <class To, class From>
  static void copy(To const& to, From const& from, std::int64_t n) {
    auto const range = Kokkos::pair<std::int64_t, std::int64_t>(0, n);
    Kokkos::deep_copy(Kokkos::subview(to, range), Kokkos::subview(from, range));
  }
  Kokkos::View<T*, device::HostSpace> host_;
  device::Owned1<T> device_;
};

/// Of one stage, master weights only where the policy has them.
template <class P>
class OffloadedState {
public:
  using Master = typename P::Master;
  using M = typename P::Moment;

  /// The buffers that all stages of a rank share: three sets, so that reading, computing and writing overlap.
  struct Staging {
    struct Set {
      StagedPiece<Master> master;
      StagedPiece<M> m, v;
    };
    std::array<Set, 3> sets;
    Staging(bool moments, std::int64_t longest) {
      for (auto& set : sets) {
        if (P::has_master) set.master = StagedPiece<Master>(longest);
        if (!moments) continue;
        set.m = StagedPiece<M>(longest);
        set.v = StagedPiece<M>(longest);
      }
    }
    std::int64_t bytes() const {
      std::int64_t sum = 0;
      for (auto const& set : sets) sum += set.master.bytes() + set.m.bytes() + set.v.bytes();
      return sum;
    }
    static std::int64_t bytes(bool moments, std::int64_t longest) {
      auto const each = (P::has_master ? sizeof(Master) : 0) + (moments ? 2 * sizeof(M) : 0);
      return 3 * longest * static_cast<std::int64_t>(each);
    }
  };

  /// Of a rank's longest stage.
  static std::int64_t longest(std::int64_t owned) { return std::min(owned, piece); }

  static std::int64_t file_bytes(std::int64_t n, bool moments) {
    return (P::has_master ? device::OffloadedArray<Master>::file_bytes(n) : 0) +
           (moments ? 2 * device::OffloadedArray<M>::file_bytes(n) : 0);
  }

  /// n: elements that are owned. `file`: null: host memory. Takes file_bytes() of it from `offset` on.
  OffloadedState(std::int64_t n, bool moments, device::SwapFile* file, std::int64_t offset) : moments_(moments) {
    if (P::has_master) {
      master = device::OffloadedArray<Master>(n, file, offset);
      offset += device::OffloadedArray<Master>::file_bytes(n);
    }
    if (!moments) return;
    m = device::OffloadedArray<M>(n, file, offset);
    v = device::OffloadedArray<M>(n, file, offset + device::OffloadedArray<M>::file_bytes(n));
  }

  device::OffloadedArray<Master> master;
  device::OffloadedArray<M> m, v;

  /// What a visit sees of a part of an owned run, its elements: empty views where there is nothing.
  struct Views {
    device::View1<Master> master;
    device::View1<M> m, v;
  };
  /// Calls visit(part of an owned run, Views) for all that is owned; `moments`: m and v too. What it writes is stored
  /// with `stores`.
  template <class Visit>
  void stream(device::ExecSpace const& exec, Staging& staging, layout::StateShard const& shard, bool moments,
              bool stores, Visit const& visit) {
    master.let_go();
    m.let_go();
    v.let_go();
    bool const with_moments = moments && moments_;
    auto const n = P::has_master ? master.size() : m.size();
    auto const pieces = (n + piece - 1) / piece;
    struct Traffic {
      std::array<device::SwapFile::Request, 3> requests;
      void wait() {
        for (auto& r : requests)
          if (r.active()) r.wait();
      }
    };
    std::array<Traffic, 3> traffic;  // by set: its load, then its store
    auto const set_of = [](std::int64_t p) { return static_cast<std::size_t>(p % 3); };
    auto const load = [&](std::int64_t p) {
      auto& t = traffic[set_of(p)];
      auto& set = staging.sets[set_of(p)];
      t.wait();  // what was stored from this set
      if (P::has_master) t.requests[0] = master.start_load(p, set.master.host());
      if (with_moments) t.requests[1] = m.start_load(p, set.m.host());
      if (with_moments) t.requests[2] = v.start_load(p, set.v.host());
    };
    std::size_t run = 0;
    if (pieces > 0) load(0);
    for (std::int64_t p = 0; p < pieces; ++p) {
      if (p + 1 < pieces) load(p + 1);
      auto& t = traffic[set_of(p)];
      auto const& set = staging.sets[set_of(p)];
      t.wait();
      auto const size = std::min(piece, n - p * piece);
      if (P::has_master) set.master.to_kernels(size);
      if (with_moments) set.m.to_kernels(size);
      if (with_moments) set.v.to_kernels(size);
      for_runs(shard, p * piece, size, run, [&](layout::OwnedRun const& part, std::int64_t begin) {
        Views views;
        if (P::has_master) views.master = set.master.view(begin, part.count);
        if (with_moments) views.m = set.m.view(begin, part.count);
        if (with_moments) views.v = set.v.view(begin, part.count);
        visit(part, views);
      });
      device::fence(exec, "p3d::engine::offloaded_state");
      if (!stores) continue;
      if (P::has_master) set.master.to_host(size);
      if (with_moments) set.m.to_host(size);
      if (with_moments) set.v.to_host(size);
      if (P::has_master) t.requests[0] = master.start_store(p, set.master.host());
      if (with_moments) t.requests[1] = m.start_store(p, set.m.host());
      if (with_moments) t.requests[2] = v.start_store(p, set.v.host());
    }
    for (auto& t : traffic) t.wait();
  }

private:
  static constexpr std::int64_t piece = device::OffloadedArray<M>::piece;
  static_assert(piece == device::OffloadedArray<Master>::piece);

  /// The parts of owned runs that lie in packed elements [begin, begin + size); `run`: where to begin looking.
  template <class Visit>
  static void for_runs(layout::StateShard const& shard, std::int64_t begin, std::int64_t size, std::size_t& run,
                       Visit const& visit) {
    auto const& owned = shard.owned;
    while (run < owned.size() && owned[run].packed + owned[run].count <= begin) ++run;
    for (std::size_t i = run; i < owned.size() && owned[i].packed < begin + size; ++i) {
      auto const first = std::max(begin, owned[i].packed);
      auto const end = std::min(begin + size, owned[i].packed + owned[i].count);
      if (first < end) visit({owned[i].begin + first - owned[i].packed, end - first, first}, first - begin);
    }
  }

  bool moments_;
};

}  // namespace p3d::engine
