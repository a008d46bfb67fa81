// SPDX-License-Identifier: Apache-2.0
#pragma once
// Events: points in the work of an execution instance. The host asks whether one is reached and goes on meanwhile; a
// fence would keep it from launching the next kernels. CUDA and HIP have events. On hosts a kernel is over when its
// launch returns, so every event is reached at once. Other backends fence where an event is recorded.

#include <p3d/device/view.hpp>

#include <memory>

namespace p3d::device {

/// One point in the work of an execution instance. Copies name the same point.
class Event {
public:
  /// Records the point at which all work that `exec` has been given so far is done. It takes a few microseconds on GPUs
  /// and nothing on hosts. Throws base::Error with the runtime's text.
  explicit Event(ExecSpace const& exec);
  /// True when the point is reached. Never blocks. Throws base::Error where a kernel before the point has failed.
  bool reached() const;

  struct Point;

private:
  std::shared_ptr<Point> point_;  ///< null where the event was reached when it was recorded
};

/// Delays events where kernels run on the host: an event recorded from here on is reached when it is asked for the n-th
/// time, so that tests take the paths of device memory. The default 0 means at once.
void set_late_events(int n);
/// True when an event may be reached only after its recording: the host is ahead of kernels, or set_late_events asks
/// for it.
bool events_come_later();

}  // namespace p3d::device
