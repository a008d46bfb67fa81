// SPDX-License-Identifier: Apache-2.0
#pragma once
// Offloaded state: the optimizer's arrays and master weights between updates (memory.offload_optimizer), and values
// between uses (memory.offload_parameters). An update streams through them in pieces: while one is computed the next is
// read and the one before is written. Values are fetched as long before their use as the schedule reloads or gathers
// them.

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/offloaded_array.hpp>
#include <p3d/layout/shards.hpp>
#include <p3d/optim/optimizer.hpp>
#include <p3d/plan/memory.hpp>

#include <array>
#include <vector>

namespace p3d::engine {

/// Room for one piece of an array, where kernels reach it and where files and host memory do: pinned there, so that
/// GPUs copy at the speed of the bus, and behind the kernels of an instance.
template <class T>
class StagedPiece {
public:
  StagedPiece() = default;
  explicit StagedPiece(std::int64_t n)
      : host_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::staged_background"),
              static_cast<std::size_t>(n)) {
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
  /// The host's memory may change when the kernels of `exec` after this have ended, and is there by then.
  void to_kernels(device::ExecSpace const& exec, std::int64_t n) const {
    if constexpr (!device::host_reaches_views) copy(exec, device_, host_, n);
  }
  void to_host(device::ExecSpace const& exec, std::int64_t n) const {
    if constexpr (!device::host_reaches_views) copy(exec, host_, device_, n);
  }

private:
  template <class To, class From>
  static void copy(device::ExecSpace const& exec, To const& to, From const& from, std::int64_t n) {
    auto const range = Kokkos::pair<std::int64_t, std::int64_t>(0, n);
    Kokkos::deep_copy(exec, Kokkos::subview(to, range), Kokkos::subview(from, range));
  }
  Kokkos::View<T*, device::PinnedSpace> host_;
  device::Owned1<T> device_;
};

using plan::StateParts;

/// The offloaded state of one stage.
template <class P>
class OffloadedState {
public:
  using Master = typename P::Master;
  using M = typename P::Moment;
  using S = typename P::Storage;

  /// The buffers that all stages of a rank share: three sets, so that reading, computing and writing overlap.
  struct Staging {
    struct Set {
      StagedPiece<Master> master;
      std::vector<StagedPiece<M>> state;
      StagedPiece<S> values;
    };
    std::array<Set, 3> sets;
    Staging(StateParts parts, std::int64_t longest) {
      for (auto& set : sets) {
        if (parts.master) set.master = StagedPiece<Master>(longest);
        for (std::size_t k = 0; k < parts.arrays; ++k) set.state.emplace_back(longest);
        if (parts.values) set.values = StagedPiece<S>(longest);
      }
    }
    std::int64_t bytes() const {
      std::int64_t sum = 0;
      for (auto const& set : sets) {
        sum += set.master.bytes() + set.values.bytes();
        for (auto const& array : set.state) sum += array.bytes();
      }
      return sum;
    }
  };

  static std::int64_t file_bytes(std::int64_t n, StateParts parts) {
    return (parts.master ? device::OffloadedArray<Master>::file_bytes(n) : 0) +
           static_cast<std::int64_t>(parts.arrays) * device::OffloadedArray<M>::file_bytes(n) +
           (parts.values ? device::OffloadedArray<S>::file_bytes(n) : 0);
  }

  /// The files that parts go to; null: host memory.
  struct Files {
    device::SwapFile* optimizer = nullptr;
    device::SwapFile* values = nullptr;
  };
  /// n: elements that are owned. Takes file_bytes() of the files from `offset` on.
  OffloadedState(std::int64_t n, StateParts parts, Files files, std::int64_t offset) : size_(n), parts_(parts) {
    auto const make = [&]<class T>(device::OffloadedArray<T>& array, device::SwapFile* file) {
      array = device::OffloadedArray<T>(n, file, offset);
      offset += device::OffloadedArray<T>::file_bytes(n);
    };
    if (parts.master) make(master, P::has_master ? files.optimizer : files.values);
    for (std::size_t k = 0; k < parts.arrays; ++k) make(state.emplace_back(), files.optimizer);
    if (parts.values) make(values_, files.values);
  }

  StateParts const& parts() const { return parts_; }
  device::OffloadedArray<Master> master;
  /// The arrays of the optimizer's state; none where it is resident.
  std::vector<device::OffloadedArray<M>> state;
  /// The values that layers read.
  device::OffloadedArray<S>& values() {
    if constexpr (P::has_master) {
      return values_;
    } else {
      return master;
    }
  }

  /// Views of the elements of a part of an owned run, for a visit: empty where the part is not streamed.
  struct Views {
    device::View1<Master> master;
    std::vector<optim::StateView<P>> state;
    device::View1<S> values;
  };
  /// Calls visit(part of an owned run, Views) for all that is owned, with the parts that it `loads` or `stores`, of
  /// those that are here.
  template <class Visit>
  void stream(device::ExecSpace const& exec, Staging& staging, layout::StateShard const& shard, StateParts loads,
              StateParts stores, Visit const& visit) {
    master.let_go();
    for (auto& array : state) array.let_go();
    loads = loads & parts_;
    stores = stores & parts_;
    auto const pieces = (size_ + piece - 1) / piece;
    struct Traffic {
      std::vector<device::SwapFile::Request> requests;
      void wait() {
        for (auto& r : requests)
          if (r.active()) r.wait();
        requests.clear();
      }
    };
    std::array<Traffic, 3> traffic;  // by set: its load, then its store
    auto const set_of = [](std::int64_t p) { return static_cast<std::size_t>(p % 3); };
    auto const load = [&](std::int64_t p) {
      auto& t = traffic[set_of(p)];
      t.wait();  // what was stored from this set
      for_parts(staging.sets[set_of(p)], loads,
                [&](auto& array, auto const& staged) { t.requests.push_back(array.start_load(p, staged.host())); });
    };
    auto const seen = loads | stores;
    std::size_t run = 0;
    if (pieces > 0) load(0);
    for (std::int64_t p = 0; p < pieces; ++p) {
      if (p + 1 < pieces) load(p + 1);
      auto& t = traffic[set_of(p)];
      auto const& set = staging.sets[set_of(p)];
      t.wait();
      auto const size = std::min(piece, size_ - p * piece);
      for_parts(set, loads, [&](auto&, auto const& staged) { staged.to_kernels(exec, size); });
      for_runs(shard, p * piece, size, run, [&](layout::OwnedRun const& part, std::int64_t begin) {
        Views views;
        if (seen.master) views.master = set.master.view(begin, part.count);
        for (std::size_t k = 0; k < seen.arrays; ++k) views.state.push_back({set.state[k].view(begin, part.count), {}});
        if (seen.values) views.values = set.values.view(begin, part.count);
        visit(part, views);
      });
      for_parts(set, stores, [&](auto&, auto const& staged) { staged.to_host(exec, size); });
      device::fence(exec, "p3d::engine::offloaded_state");
      for_parts(set, stores,
                [&](auto& array, auto const& staged) { t.requests.push_back(array.start_store(p, staged.host())); });
    }
    for (auto& t : traffic) t.wait();
  }

private:
  static constexpr std::int64_t piece = device::OffloadedArray<M>::piece;
  static_assert(piece == device::OffloadedArray<Master>::piece);

  /// Calls visit(offloaded array, its piece in a set of buffers) for the chosen parts.
  template <class Visit>
  void for_parts(typename Staging::Set const& set, StateParts chosen, Visit const& visit) {
    if (chosen.master) visit(master, set.master);
    for (std::size_t k = 0; k < chosen.arrays; ++k) visit(state[k], set.state[k]);
    if (chosen.values) visit(values_, set.values);
  }

  /// The parts of owned runs that lie in packed elements [begin, begin + size); `run`: where to begin looking.
  template <class Visit>
  static void for_runs(layout::StateShard const& shard, std::int64_t begin, std::int64_t size, std::size_t& run,
                       Visit const& visit) {
    auto const& owned = shard.owned;
    while (run < owned.size() && owned[run].packed + owned[run].count <= begin) ++run;
    for (std::size_t i = run; i < owned.size() && owned[i].packed < begin + size; ++i) {
      auto const first = std::max(begin, owned[i].packed);
      auto const end = std::min(begin + size, owned[i].packed + owned[i].count);
      if (first < end)
        visit({owned[i].begin + first - owned[i].packed, end - first, first, owned[i].copy}, first - begin);
    }
  }

  std::int64_t size_;
  StateParts parts_;
  device::OffloadedArray<S> values_;  ///< see values()
};

}  // namespace p3d::engine
