// SPDX-License-Identifier: Apache-2.0
// The check of host accesses to device memory, by hooks of Kokkos' tools: they see every allocation, kernel and copy,
// and poison or unpoison all known blocks for the address sanitizer.
#include <p3d/device/guard.hpp>

#if defined(__SANITIZE_ADDRESS__)

#include <map>
#include <string_view>
#include <vector>

extern "C" {
void __asan_poison_memory_region(void const volatile*, std::size_t);
void __asan_unpoison_memory_region(void const volatile*, std::size_t);
}

namespace p3d::device {

namespace {

namespace hooks = Kokkos::Tools::Experimental;

using Blocks = std::map<void const*, std::size_t>;

/// The guarded allocations, and the kernels and copies that run. Kokkos calls its hooks on the thread that calls
/// Kokkos, which in p3d is the main thread.
struct Guard {
  Blocks device, host;
  std::vector<bool>
      kernels;  ///< one entry for each kernel that runs: true for p3d's own. Kokkos' own kernels also set up host Views
  int copies = 0;
  std::vector<bool> regions;  ///< one entry for each open region: true where a library works on device memory in it

  void set(Blocks const& blocks, bool poisoned) const {
    for (auto const& [data, bytes] : blocks)
      (poisoned ? __asan_poison_memory_region : __asan_unpoison_memory_region)(data, bytes);
  }
  /// Poisons and unpoisons all blocks. Called after every change of kernels and copies.
  void apply() const {
    set(device, kernels.empty() && copies == 0);
    set(host, !kernels.empty() && kernels.front() && copies == 0);
  }
};
Guard& guard() {
  static auto& the_guard = *new Guard;  // never freed: it outlives every View
  return the_guard;
}

bool is_ours(std::string_view name) { return name.substr(0, 5) == "p3d::"; }

void kernel_begins(char const* name, std::uint32_t, std::uint64_t*) {
  guard().kernels.push_back(is_ours(name));
  guard().apply();
}
void kernel_ends(std::uint64_t) {
  guard().kernels.pop_back();
  guard().apply();
}

/// The data of an allocation. Kokkos reports the address of its own header, in front of the data.
void const* data_of(void const* allocation) {
  return static_cast<char const*>(allocation) + sizeof(Kokkos::Impl::SharedAllocationHeader);
}

bool is_host_copy(std::string_view name) {
  for (std::string_view const word : {"host", "pinned"}) {
    if (name.find(word) != name.npos) return true;
  }
  return false;
}

}  // namespace

void guard_memory() {
  if constexpr (!memory_is_guarded) return;
  hooks::set_begin_parallel_for_callback(kernel_begins);
  hooks::set_begin_parallel_reduce_callback(kernel_begins);
  hooks::set_begin_parallel_scan_callback(kernel_begins);
  hooks::set_end_parallel_for_callback(kernel_ends);
  hooks::set_end_parallel_reduce_callback(kernel_ends);
  hooks::set_end_parallel_scan_callback(kernel_ends);
  hooks::set_begin_deep_copy_callback([](Kokkos::Tools::SpaceHandle, char const*, void const*,
                                         Kokkos::Tools::SpaceHandle, char const*, void const*, std::uint64_t) {
    ++guard().copies;
    guard().apply();
  });
  hooks::set_end_deep_copy_callback([] {
    --guard().copies;
    guard().apply();
  });
  hooks::set_push_region_callback([](char const* name) {
    bool const works = std::string_view(name) == "p3d::linalg::gemm";
    guard().regions.push_back(works);
    if (works) kernel_begins(name, 0, nullptr);
  });
  hooks::set_pop_region_callback([] {
    if (guard().regions.empty()) return;  // the region began before the guard
    if (guard().regions.back()) kernel_ends(0);
    guard().regions.pop_back();
  });
  hooks::set_allocate_data_callback(
      [](Kokkos::Tools::SpaceHandle, char const* label, void const* allocation, std::uint64_t bytes) {
        std::string_view const name(label);
        if (!is_ours(name) || name.find("background") != name.npos) return;
        (is_host_copy(name) ? guard().host : guard().device)[data_of(allocation)] = bytes;
        guard().apply();
      });
  hooks::set_deallocate_data_callback(
      [](Kokkos::Tools::SpaceHandle, char const*, void const* allocation, std::uint64_t bytes) {
        auto const* const data = data_of(allocation);
        if (guard().device.erase(data) + guard().host.erase(data) > 0) __asan_unpoison_memory_region(data, bytes);
      });
}

}  // namespace p3d::device

#else

void p3d::device::guard_memory() {}

#endif
