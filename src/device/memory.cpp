// SPDX-License-Identifier: Apache-2.0
#include <p3d/device/memory.hpp>

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace p3d::device {

void prefer_large_pages(void* memory, std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::size_t worthwhile = 4 << 20;
  if (!std::is_same_v<MemSpace, HostSpace> || bytes < worthwhile) return;
  // The advice is for the whole pages inside the array. A system without huge pages refuses it, which changes nothing.
  auto const page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  auto const begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  auto const end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

}  // namespace p3d::device
