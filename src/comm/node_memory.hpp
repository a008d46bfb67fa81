// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that all ranks of this node read and write: one MPI shared-memory window for the life of the process, out of
// which the communicators get their regions. (A window for each communicator would cost about ten blocking collectives
// each, which take seconds together when ranks outnumber cores, and could only be freed by all of its ranks together.)
// Each rank's bell (bell.hpp) lies at the beginning of its part.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::comm::detail {

/// Before MPI_Finalize; collective over the node.
void close_node_memory();
/// After comm::open_node_memory(); where it did not succeed, the error says why.
bool node_memory_is_open();
std::string const& node_memory_error();

/// Where a rank is: the world rank of the first rank of its node, and its own number there.
struct NodePlace {
  std::int64_t node = 0;
  std::int64_t rank = 0;
};
NodePlace place_on_node();

/// The part of the window that belongs to a rank of this node.
std::byte* node_memory_of(std::int64_t node_rank);
std::byte* own_node_memory();
std::size_t own_node_memory_bytes();

/// `bytes` of this rank's part, as an offset into it, present and zeroed; 0 when there is no room. Local.
std::int64_t allocate_region(std::size_t bytes);
/// Gives back what nobody reads any more. Local.
void free_region(std::int64_t offset, std::size_t bytes);
/// Gives a region back. It is used again only once `*users` counts `expected`: when all peers have left it.
void retire_region(std::int64_t offset, std::size_t bytes, std::atomic<std::uint32_t> const* users,
                   std::uint32_t expected);

}  // namespace p3d::comm::detail
