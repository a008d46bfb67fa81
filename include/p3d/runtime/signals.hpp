#pragma once
// SIGINT and SIGTERM: the first one asks for a stop at the next step boundary, the second ends the process at once.

namespace p3d::runtime {

/// Installs the handlers for its lifetime and restores the old ones.
class SignalGuard {
public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(SignalGuard const&) = delete;
  SignalGuard& operator=(SignalGuard const&) = delete;
};

/// The signal that asked this rank to stop, or 0.
int stop_signal();

}  // namespace p3d::runtime
