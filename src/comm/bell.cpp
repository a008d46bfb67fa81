// SPDX-License-Identifier: Apache-2.0
#include "bell.hpp"

#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdint>

namespace p3d::comm::detail {

namespace {

/// The flag of one rank: a futex in the node's memory.
using Bell = std::atomic<std::uint32_t>;
static_assert(Bell::is_always_lock_free && sizeof(Bell) == 4);
enum Sleeper : std::uint32_t { awake = 0, asleep = 1 };

/// The flags of all ranks of this node, and this rank's own.
std::vector<Bell*> bells;
Bell* own = nullptr;

/// Wakes a rank of this node if it sleeps.
void ring_bell(int node_rank) {
#if defined(__linux__)
  auto* const bell = bells[static_cast<std::size_t>(node_rank)];
  if (bell->load(std::memory_order_relaxed) != asleep) return;
  if (bell->exchange(awake) == asleep) syscall(SYS_futex, bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
#else
  static_cast<void>(node_rank);
#endif
}

}  // namespace

void open_bells(std::vector<std::byte*> const& memory_by_rank, int own_rank) {
#if defined(__linux__)
  for (auto* memory : memory_by_rank) bells.push_back(reinterpret_cast<Bell*>(memory));
  own = bells[static_cast<std::size_t>(own_rank)];
#else
  static_cast<void>(memory_by_rank), static_cast<void>(own_rank);
#endif
}

void close_bells() {
  bells.clear();
  own = nullptr;
}

bool have_bells() { return own != nullptr; }

// The order is: news before flag here, flag before news in arm_bell(). With a full fence between the two on both sides,
// either the sleeper sees the news or the rank with news sees that it sleeps.
void ring_bells(std::span<int const> node_ranks) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int const rank : node_ranks) ring_bell(rank);
}

void arm_bell() {
  if (own == nullptr) return;
  own->store(asleep, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool sleep_on_bell(int microseconds) {
  timespec const pause{microseconds / 1000000, (microseconds % 1000000) * 1000L};
#if defined(__linux__)
  if (own != nullptr) {
    // A signal ends the sleep early.
    syscall(SYS_futex, own, FUTEX_WAIT, static_cast<std::uint32_t>(asleep), &pause, nullptr, 0);
    return own->load(std::memory_order_relaxed) == awake;
  }
#endif
  nanosleep(&pause, nullptr);
  return false;
}

void disarm_bell() {
  if (own != nullptr) own->store(awake, std::memory_order_relaxed);
}

}  // namespace p3d::comm::detail
