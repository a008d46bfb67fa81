// SPDX-License-Identifier: Apache-2.0
#include <p3d/device/compat.hpp>
#include <p3d/device/pinned.hpp>

#include <bit>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace p3d::device {

std::shared_ptr<std::byte> pinned_memory(std::size_t bytes, std::string const& label) {
  using Block = Kokkos::View<std::byte*, Kokkos::LayoutRight, PinnedSpace>;
  Block const block(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), bytes);
  return {block.data(), [block](std::byte*) {}};
}

namespace {

using Block = std::shared_ptr<std::byte>;

/// The free blocks by size, a power of two, and the blocks that wait for an event.
struct Pool {
  std::map<std::size_t, std::vector<Block>> blocks;
  std::deque<std::pair<Event, Block>> kept;  ///< blocks of keep_until, in the order of their events
};

/// The pool. It is emptied when Kokkos ends; blocks in use then are not taken back.
std::shared_ptr<Pool>& pool() {
  static std::shared_ptr<Pool> the_pool;
  if (!the_pool) {
    the_pool = std::make_shared<Pool>();
    Kokkos::push_finalize_hook([] { the_pool.reset(); });
  }
  return the_pool;
}

}  // namespace

std::shared_ptr<std::byte> pinned_block(std::size_t bytes) {
  std::size_t const size = std::bit_ceil(bytes < 4096 ? std::size_t{4096} : bytes);
  auto const from = pool();
  while (!from->kept.empty() && from->kept.front().first.reached()) {
    auto const back_to_the_pool = std::move(from->kept.front());
    from->kept.pop_front();
  }
  auto& free_blocks = from->blocks[size];
  Block block;
  if (free_blocks.empty()) {
    block = pinned_memory(size, "p3d::device::pinned");
  } else {
    block = std::move(free_blocks.back());
    free_blocks.pop_back();
  }
  std::weak_ptr<Pool> const home = from;
  return {block.get(), [block, size, home](std::byte*) {
            if (auto const owner = home.lock()) owner->blocks[size].push_back(block);
          }};
}

void keep_until(Event read, std::shared_ptr<std::byte> block) {
  if (!read.reached()) pool()->kept.emplace_back(std::move(read), std::move(block));
}

}  // namespace p3d::device
