// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one place that decides where an operation reads and writes: in the view itself where the host or MPI can reach
// its memory, or where NCCL carries the operation; else in a host copy that the request keeps alive. It also decides
// when the operation begins: after an event behind the caller's kernels.

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/view.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>

#include "pinned.hpp"

namespace p3d::collectives::detail {

using device::host_reaches_views;

/// Elements [begin, end) of a buffer.
struct Run {
  std::int64_t begin = 0, end = 0;
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
      : Buffer(exec, nccl, data, n, use == Use::write ? Run{} : Run{0, n}, use == Use::read ? Run{} : Run{0, n},
               on_host) {}

  /// A buffer for an operation that reads the elements `read` of the view and writes the elements `written`.
  Buffer(ExecSpace const& exec, bool nccl, T* data, std::int64_t n, Run read, Run written, bool on_host = false)
      : exec_(exec), view_(data, n), written_(written), nccl_(nccl) {
    static_assert(!std::is_const_v<T>, "use a pointer to what is really written");
    if (nccl_) return;
    if (stages() || (on_host && !host_reaches_views)) {
      auto const memory = pinned(static_cast<std::size_t>(n) * sizeof(T));
      host_ = std::make_shared<Host>(Host{memory, HostView(reinterpret_cast<T*>(memory.get()), n)});
      if (read.begin == read.end) return;  // at once: nobody else has the block
      Kokkos::deep_copy(exec, part(host_->view, read), part(view_, read));
    }
    kernels_.emplace(exec);
  }

  /// The address that the operation sends from and receives to.
  T* data() const { return host_ ? host_->view.data() : view_.data(); }

  /// The kind of memory at data(), and the event after which the operation may begin.
  comm::Place place() const {
    if (nccl_) return on_stream(exec_);
    auto const memory = host_ || host_reaches_views ? comm::Memory::host : comm::Memory::device;
    if (!kernels_ || kernels_->reached()) return memory;
    return {memory, nullptr, [kernels = *kernels_] { return kernels.reached(); }};
  }

  /// Gives the host copy to the request. It is kept until completion, then copied back to the view if it was written.
  Request attach(Request request) const {
    if (!host_) return request;
    if (written_.begin == written_.end) {
      request.on_complete({}, host_);
    } else {
      request.on_complete(
          [exec = exec_, to = part(view_, written_), from = part(host_->view, written_), memory = host_->memory] {
            Kokkos::deep_copy(exec, to, from);
            keep_until(device::Event(exec), memory);
          },
          host_);
    }
    return request;
  }

private:
  using HostView = Kokkos::View<T*, Kokkos::LayoutRight, device::PinnedSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  /// A host copy of the view, and the pinned block that it lies in.
  struct Host {
    std::shared_ptr<std::byte> memory;
    HostView view;
  };
  template <class V>
  static V part(V const& view, Run run) {
    return V(view.data() + run.begin, run.end - run.begin);
  }

  ExecSpace exec_;
  View1<T> view_;
  Run written_;
  bool nccl_;
  std::shared_ptr<Host> host_;
  std::optional<device::Event> kernels_;  ///< the event behind the caller's kernels; none: the operation need not wait
};

/// Throws base::Error unless a view is contiguous: MPI wants one run of memory.
template <class V>
void require_contiguous(V const& view) {
  P3D_REQUIRE(view.span_is_contiguous(), "messages are contiguous views");
}

}  // namespace p3d::collectives::detail
