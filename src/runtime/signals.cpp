#include <p3d/runtime/signals.hpp>

#include <csignal>
#include <unistd.h>

namespace p3d::runtime {

namespace {
volatile std::sig_atomic_t received = 0;

void handler(int signal) {
  if (received != 0) _exit(128 + signal);
  received = signal;
}

using Handler = void (*)(int);
Handler old_int = SIG_DFL;
Handler old_term = SIG_DFL;
}  // namespace

SignalGuard::SignalGuard() {
  received = 0;
  old_int = std::signal(SIGINT, handler);
  old_term = std::signal(SIGTERM, handler);
}

SignalGuard::~SignalGuard() {
  std::signal(SIGINT, old_int);
  std::signal(SIGTERM, old_term);
}

int stop_signal() { return received; }

}  // namespace p3d::runtime
