// SPDX-License-Identifier: Apache-2.0
// Preloaded: the time of day is P3D_NODES_CLOCK seconds ahead on host P3D_NODES_CLOCK_HOST. (Namespaces shift the other
// clocks.)
#include <dlfcn.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {
time_t ahead() {
  static time_t const seconds = [] {
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    char const* const host = std::getenv("P3D_NODES_CLOCK_HOST");
    char const* const text = std::getenv("P3D_NODES_CLOCK");
    return host != nullptr && text != nullptr && std::strcmp(host, name) == 0 ? std::atol(text) : 0L;
  }();
  return seconds;
}
template <class Function>
Function* next(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
}  // namespace

extern "C" {
int clock_gettime(clockid_t clock, timespec* out) noexcept {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  int const code = real(clock, out);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += ahead();
  return code;
}
int gettimeofday(timeval* out, void* zone) noexcept {
  static auto* const real = next<int(timeval*, void*)>("gettimeofday");
  int const code = real(out, zone);
  if (code == 0) out->tv_sec += ahead();
  return code;
}
time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
}
