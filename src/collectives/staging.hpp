// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one place that decides where an operation reads and writes: in the view itself where the host or MPI can reach
// its memory, or where NCCL carries the operation; else in a host copy that the request keeps alive. It also decides
// when the operation begins: after an event behind the caller's kernels.

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/view.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "pinned.hpp"

namespace p3d::collectives::detail {

using device::host_reaches_views;

/// Elements [begin, end) of a view.
struct Run {
  std::int64_t begin = 0, end = 0;
  std::int64_t copied_to = 0;  ///< the place of the first one in a host copy
  std::int64_t size() const { return end - begin; }
};

/// True when collectives and exchanges on this communicator go by NCCL, which waits for the caller's kernels on the
/// GPU.
inline bool by_nccl(Communicator const& comm) { return !views_are_on_host() && comm.has_nccl(); }

/// The place of a view for NCCL: the operation comes after the kernels of `exec`, and `exec` waits for the result where
/// it is on a GPU.
inline comm::Place on_stream(ExecSpace const& exec) {
  comm::Place place(comm::Memory::device, device::native_stream(exec));
  place.stream_waits = !device::on_host();
  return place;
}

/// The buffer of one operation on `n` contiguous elements at `data`. The host waits for nothing: an event keeps the
/// operation behind the caller's kernels, and another keeps a staging block out of the pool while the device reads it.
template <class T>
class Buffer {
public:
  /// The direction of the data: the operation reads the view, writes it, or both.
  enum class Use { read, write, both };

  /// A buffer for all n elements. `nccl` says that NCCL carries the operation. `on_host` sends the elements through a
  /// host copy where the host does not reach the view, even where MPI does.
  Buffer(ExecSpace const& exec, bool nccl, T* data, std::int64_t n, Use use, bool on_host = false)
      : Buffer(exec, nccl, data, n, some_of({0, n}, use != Use::write), some_of({0, n}, use != Use::read), on_host) {}

  /// A buffer for an operation that reads the elements `read` of the view and writes the elements `written`, of n in
  /// all.
  Buffer(ExecSpace const& exec, bool nccl, T* data, std::int64_t n, std::vector<Run> const& read,
         std::vector<Run> written, bool on_host = false)
      : exec_(exec), view_(data), written_(std::move(written)), nccl_(nccl) {
    static_assert(!std::is_const_v<T>, "use a pointer to what is really written");
    if (nccl_) return;
    if (stages() || (on_host && !host_reaches_views)) {
      host_ = pinned(static_cast<std::size_t>(n) * sizeof(T));
      bool none = true;
      for (auto const& run : read) {
        if (run.size() == 0) continue;
        none = false;
        Kokkos::deep_copy(exec, in_copy(host_, run), in_view(view_, run));
      }
      if (none) return;  // at once: nobody else has the block
    }
    kernels_.emplace(exec);
  }

  /// The address that the operation sends from and receives to.
  T* data() const { return host_ ? reinterpret_cast<T*>(host_.get()) : view_; }
  /// True where data() is a host copy.
  bool is_copy() const { return host_ != nullptr; }

  /// The kind of memory at data(), and the event after which the operation may begin.
  comm::Place place() const {
    if (nccl_) return on_stream(exec_);
    auto const memory = host_ || host_reaches_views ? comm::Memory::host : comm::Memory::device;
    if (!kernels_ || kernels_->reached()) return memory;
    return {memory, nullptr, [kernels = *kernels_] { return kernels.reached(); }};
  }

  /// Gives the host copy to the request.
  Request attach(Request request) const {
    if (!host_) return request;
    auto [hook, keep] = completion();
    request.on_complete(std::move(hook), std::move(keep));
    return request;
  }
  /// The end of an operation on the host copy: the copy is kept until then, and copied back to the view if it was
  /// written.
  Communicator::Message::Completion completion() const {
    if (std::none_of(written_.begin(), written_.end(), [](Run const& run) { return run.size() > 0; }))
      return {{}, host_};
    return {[exec = exec_, view = view_, written = written_, memory = host_] {
              for (auto const& run : written) {
                if (run.size() > 0) Kokkos::deep_copy(exec, in_view(view, run), in_copy(memory, run));
              }
              keep_until(device::Event(exec), memory);
            },
            host_};
  }

private:
  using HostView = Kokkos::View<T*, Kokkos::LayoutRight, device::PinnedSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  static std::vector<Run> some_of(Run all, bool some) { return some ? std::vector<Run>{all} : std::vector<Run>(); }
  static View1<T> in_view(T* view, Run const& run) { return View1<T>(view + run.begin, run.size()); }
  static HostView in_copy(std::shared_ptr<std::byte> const& host, Run const& run) {
    return HostView(reinterpret_cast<T*>(host.get()) + run.copied_to, run.size());
  }

  ExecSpace exec_;
  T* view_;
  std::vector<Run> written_;
  bool nccl_;
  std::shared_ptr<std::byte> host_;       ///< a pinned block, the host copy
  std::optional<device::Event> kernels_;  ///< the event behind the caller's kernels; none: the operation need not wait
};

/// Throws base::Error unless a view is contiguous: MPI wants one run of memory.
template <class V>
void require_contiguous(V const& view) {
  P3D_REQUIRE(view.span_is_contiguous(), "messages are contiguous views");
}

}  // namespace p3d::collectives::detail
