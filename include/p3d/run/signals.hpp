// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIGINT, SIGTERM and SIGUSR1 (Slurm's warning). The first one asks for a stop at the next step boundary, a second one
// ends the process at once. Before the steps begin there is nothing to save: the ranks leave together at the first
// step, or each on its own after 10 s, with the exit code that says "start again".

namespace p3d::run {

/// Installs the signal handlers for its lifetime, and restores the old ones at its end. One at a time in a process.
class SignalGuard {
public:
  /// `speaks`: the first signal is answered on stderr, so that nobody wonders during a long step.
  explicit SignalGuard(bool speaks = false);
  ~SignalGuard();
  /// From here on a signal asks for a stop after the step. Earlier, it asks for one before the first step, for which
  /// the ranks leave together, or each on its own after 10 s.
  void steps_begin();
  SignalGuard(SignalGuard const&) = delete;
  SignalGuard& operator=(SignalGuard const&) = delete;
};

/// The signal that asked this rank to stop, or 0. A signal within half a second of the first one is the same request:
/// launchers and batch systems deliver one twice.
int stop_signal();

}  // namespace p3d::run
