// SPDX-License-Identifier: Apache-2.0
// Events of CUDA and HIP, whose runtimes have the same functions under two prefixes; and events of hosts, which are
// reached at once unless a test delays them.
#include <p3d/device/event.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/environment.hpp>

#include <fmt/format.h>

#include <vector>

#if defined(KOKKOS_ENABLE_CUDA)
#define P3D_GPU(name) cuda##name
#elif defined(KOKKOS_ENABLE_HIP)
#define P3D_GPU(name) hip##name
#endif

namespace p3d::device {

#if defined(P3D_GPU)

namespace {

using Native = P3D_GPU(Event_t);

/// True on success, false where work is not done yet. Throws base::Error for all else; `what` names the action.
bool check(P3D_GPU(Error_t) code, char const* what) {
  if (code == P3D_GPU(Success)) return true;
  if (code == P3D_GPU(ErrorNotReady)) return false;
  throw base::Error({.expected = fmt::format("the GPU to do {}", what),
                     .found = P3D_GPU(GetErrorString)(code),
                     .where = "",
                     .fix =
                         "an earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1 (AMD_SERIALIZE_KERNEL=3 "
                         "on AMD) to see which"});
}

/// Events that no Event has. They are made once and used again, because making one takes longer than recording it. The
/// driver frees them with the process.
std::vector<Native>& unused() {
  static auto& events = *new std::vector<Native>;
  return events;
}

}  // namespace

struct Event::Point {
  Point() {
    if (unused().empty()) {
      check(P3D_GPU(EventCreateWithFlags)(&event, P3D_GPU(EventDisableTiming)), "a new event");
    } else {
      event = unused().back();
      unused().pop_back();
    }
  }
  ~Point() { unused().push_back(event); }
  Point(Point const&) = delete;
  Point& operator=(Point const&) = delete;
  Native event{};
};

Event::Event(ExecSpace const& exec) : point_(std::make_shared<Point>()) {
  check(P3D_GPU(EventRecord)(point_->event, static_cast<P3D_GPU(Stream_t)>(native_stream(exec))),
        "an event behind its kernels");
}

bool Event::reached() const { return check(P3D_GPU(EventQuery)(point_->event), "the kernels before an event"); }

void set_late_events(int) {}
bool events_come_later() { return true; }

#else

namespace {
int late = 0;  ///< the n of set_late_events
}  // namespace

struct Event::Point {
  int questions;  ///< how many more questions are answered with no
};

Event::Event(ExecSpace const& exec) {
  if constexpr (!Kokkos::SpaceAccessibility<HostSpace, MemSpace>::accessible) {
    fence(exec, "p3d::device::event");
  } else if (late > 0) {
    point_ = std::make_shared<Point>(Point{late - 1});
  }
}

bool Event::reached() const { return !point_ || point_->questions-- <= 0; }

void set_late_events(int n) { late = n; }
bool events_come_later() { return late > 0; }

#endif

}  // namespace p3d::device
