// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that all ranks of this node read and write: one MPI shared-memory window for the life of the process, in which
// the communicators get their regions. (A window for each communicator would cost about ten blocking collectives each,
// which take seconds in all when ranks outnumber cores, and only all of its ranks at once could free it.) Each rank's
// wake-up flag (bell.hpp) lies at the beginning of its part.

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace p3d::comm::detail {

/// Closes the window, before MPI_Finalize. Collective over the node.
void close_node_memory();
/// True after comm::open_node_memory() has succeeded.
bool node_memory_is_open();
/// The reason when there is no memory; empty otherwise.
std::string const& node_memory_error();

/// The place of a rank: the world rank of the first rank of its node, and its own number there.
struct NodePlace {
  std::int64_t node = 0;
  std::int64_t rank = 0;
};
/// The place of this rank; as set_ranks_per_node() pretends, in tests.
NodePlace place_on_node();

/// True when all ranks of the run are on this node.
bool all_on_one_node();
/// The numbers on this node of a communicator's ranks; -1 for ranks on other nodes. Local.
std::vector<int> numbers_on_node(MPI_Comm comm);

/// The part of the window that belongs to a rank of this node.
std::byte* node_memory_of(std::int64_t node_rank);
/// The part of this rank.
std::byte* own_node_memory();
std::size_t own_node_memory_bytes();

/// Takes `bytes` of this rank's part, zeroed, with pages that exist. Returns their offset into the part; 0 when there
/// is no room. Local.
std::int64_t allocate_region(std::size_t bytes);
/// Returns a region that nobody reads any more. Local.
void free_region(std::int64_t offset, std::size_t bytes);
/// Returns a region. It is used again only once `*users` has reached `expected`: then all peers have left it.
void retire_region(std::int64_t offset, std::size_t bytes, std::atomic<std::uint32_t> const* users,
                   std::uint32_t expected);

}  // namespace p3d::comm::detail
