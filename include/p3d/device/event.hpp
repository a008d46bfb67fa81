// SPDX-License-Identifier: Apache-2.0
#pragma once
// Points in the work of an execution instance. The host asks whether one is reached and goes on meanwhile; a fence
// would keep it from launching what comes next. CUDA and HIP have them. On hosts kernels are over when their launch
// returns, so that every event is reached at once. Other backends fence where an event is recorded.

#include <p3d/device/view.hpp>

#include <memory>

namespace p3d::device {

class Event {
public:
  /// Reached when all that `exec` has been given so far is done. Takes a few microseconds on GPUs, nothing on hosts.
  /// Throws base::Error with the runtime's text.
  explicit Event(ExecSpace const& exec);
  /// Never blocks. Throws base::Error where a kernel before it has failed.
  bool reached() const;

  struct Point;

private:
  std::shared_ptr<Point> point_;  ///< null: reached
};

/// Where kernels run on the host: events recorded from here on are reached when asked for the n-th time, so that tests
/// walk the ways of device memory. Default: 0, at once.
void set_late_events(int n);
/// Whether an event may be reached only after its recording: the host is ahead of kernels, or set_late_events asks.
bool events_come_later();

}  // namespace p3d::device
