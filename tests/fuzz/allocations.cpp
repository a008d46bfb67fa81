// SPDX-License-Identifier: Apache-2.0
#include "allocations.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include <malloc.h>

#if defined(__SANITIZE_ADDRESS__)
#define P3D_FUZZ_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define P3D_FUZZ_ASAN 1
#endif
#endif

namespace p3d::fuzz {

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> largest{0}, most{0};
std::atomic<std::int64_t> held{0};

void raise(std::atomic<std::size_t>& to, std::size_t value) {
  for (auto was = to.load(); was < value && !to.compare_exchange_weak(was, value);) {
  }
}

void taken(void const volatile* p, std::size_t bytes) {
  if (!counting.load(std::memory_order_relaxed)) return;
  raise(largest, bytes);
  if (p == nullptr) return;
  auto const now = held += static_cast<std::int64_t>(::malloc_usable_size(const_cast<void*>(p)));
  raise(most, static_cast<std::size_t>(std::max<std::int64_t>(now, 0)));
}

void given_back(void const volatile* p) {
  if (p == nullptr || !counting.load(std::memory_order_relaxed)) return;
  held -= static_cast<std::int64_t>(::malloc_usable_size(const_cast<void*>(p)));
}

}  // namespace

void count_allocations() {
  largest = most = 0;
  held = 0;
  counting = true;
}

Allocations stop_counting() {
  counting = false;
  return {largest, most};
}

}  // namespace p3d::fuzz

#ifdef P3D_FUZZ_ASAN

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(void const volatile*, std::size_t),
                                                         void (*)(void const volatile*));
// More than this is an error even where the hook does not see it. HDF5 keeps blocks for later, which are no leak.
extern "C" char const* __asan_default_options() { return "max_allocation_size_mb=64"; }

namespace {
[[maybe_unused]] int const installed = __sanitizer_install_malloc_and_free_hooks(
    [](void const volatile* p, std::size_t bytes) { p3d::fuzz::taken(p, bytes); },
    [](void const volatile* p) { p3d::fuzz::given_back(p); });
}

#elif defined(__GLIBC__)

// The program's own malloc: glibc's, counted. Without noexcept nvcc takes them for other functions than glibc's.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) noexcept {
  void* const p = __libc_malloc(bytes);
  p3d::fuzz::taken(p, bytes);
  return p;
}
void* calloc(std::size_t n, std::size_t each) noexcept {
  void* const p = __libc_calloc(n, each);
  p3d::fuzz::taken(p, n * each);
  return p;
}
void* realloc(void* old, std::size_t bytes) noexcept {
  p3d::fuzz::given_back(old);
  void* const p = __libc_realloc(old, bytes);
  p3d::fuzz::taken(p, bytes);
  return p;
}
void free(void* p) noexcept {
  p3d::fuzz::given_back(p);
  __libc_free(p);
}
}

#endif
