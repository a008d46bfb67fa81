// SPDX-License-Identifier: Apache-2.0
#pragma once
// This process: where it runs, its signals, its end.

#include <csignal>
#include <cstdint>
#include <string>

namespace p3d::base {

/// The name of this host, at most 255 characters; "unknown" when the system does not say.
std::string host_name();

/// Bytes of memory in use by this process. Pages that several processes share count in parts (Linux's proportional set
/// size), so that sums over ranks are right. 0 when the system does not say.
std::int64_t proportional_set_size();

/// Raises the number of files that this process may have open to 65,536, or to the most that the system allows it: data
/// may lie in thousands of files, and the usual limit is 1,024.
void raise_open_files();

/// Keeps signals from this thread, but for those of its own errors (SIGSEGV and the like), as long as an object of this
/// class lives. It is used around the start of a thread, which inherits that, since signals are for the thread that
/// trains; and around calls that a signal must not interrupt.
class SignalsBlocked {
public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(SignalsBlocked const&) = delete;
  SignalsBlocked& operator=(SignalsBlocked const&) = delete;

private:
  sigset_t before_;  ///< the signal mask to restore
};

/// Waits 0.3 s after a last message: launchers drop the output that they have not read yet when a rank ends or aborts.
void let_last_message_out();

}  // namespace p3d::base
