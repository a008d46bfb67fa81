#pragma once
// The one place that decides where MPI reads and writes: in the view itself when the host can reach its memory, in a host
// copy that the request keeps alive otherwise.

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/view.hpp>

#include <memory>
#include <string>
#include <type_traits>

namespace p3d::collectives::detail {

inline constexpr bool host_reaches_views = Kokkos::SpaceAccessibility<device::HostSpace, device::MemSpace>::accessible;

/// True when host copies are made although the views are within reach (tests).
bool always_stage();

/// The buffer of one operation on `n` contiguous elements at `data`, after the caller's kernels on `exec` are done.
template <class T>
class Buffer {
public:
  enum class Use { read, write, both };

  Buffer(ExecSpace const& exec, T* data, std::int64_t n, Use use, char const* label) : exec_(exec), view_(data, n), use_(use) {
    static_assert(!std::is_const_v<T>, "use a pointer to what is really written");
    device::fence(exec, std::string("p3d::collectives::") + label);
    if (host_reaches_views && !always_stage()) return;
    host_ = std::make_shared<Host>(Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string("p3d::collectives::staging")), n);
    if (use != Use::write) Kokkos::deep_copy(*host_, view_);
  }

  /// What MPI is given.
  T* data() const { return host_ ? host_->data() : view_.data(); }

  /// Gives the copy to the request: kept until completion, then brought back if MPI wrote to it.
  Request attach(Request request) const {
    if (!host_) return request;
    if (use_ == Use::read) {
      request.on_complete({}, host_);
    } else {
      request.on_complete(
          [exec = exec_, view = view_, host = host_.get()] {
            Kokkos::deep_copy(exec, view, *host);
            device::fence(exec, "p3d::collectives::unstage");
          },
          host_);
    }
    return request;
  }

private:
  using Host = Kokkos::View<T*, Kokkos::LayoutRight, device::HostSpace>;
  ExecSpace exec_;
  View1<T> view_;
  Use use_;
  std::shared_ptr<Host> host_;
};

/// MPI wants one run of memory.
template <class V>
void require_contiguous(V const& view) {
  P3D_REQUIRE(view.span_is_contiguous(), "messages are contiguous views");
}

}  // namespace p3d::collectives::detail
