// SPDX-License-Identifier: Apache-2.0
#pragma once
// This process: where it runs, its signals, its end.

#include <csignal>
#include <cstdint>
#include <string>

namespace p3d::base {

/// The name of this host, at most 255 characters; "unknown" when the system does not say.
std::string host_name();

/// Bytes of memory in use, where pages that several processes share count in parts (Linux's proportional set size):
/// sums over ranks are right. 0 when the system does not say.
std::int64_t proportional_set_size();

/// While it lives, this thread takes no signals but those of its own errors (SIGSEGV and the like). Around the start of
/// a thread, which inherits that: signals are for the thread that trains. And around calls that a signal must not
/// interrupt.
class SignalsBlocked {
public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(SignalsBlocked const&) = delete;
  SignalsBlocked& operator=(SignalsBlocked const&) = delete;

private:
  sigset_t before_;
};

/// Launchers drop what they have not read yet when a rank ends or aborts: wait this out after a last message.
void let_last_message_out();

}  // namespace p3d::base
