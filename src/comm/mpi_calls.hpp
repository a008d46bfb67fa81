// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of the operations that hand a buffer to MPI.

#include <cstddef>
#include <cstdint>

#include "late_start.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

/// Address of an element of a buffer.
inline std::byte* at(void* base, std::int64_t element, ElementType type) {
  return static_cast<std::byte*>(base) + element * static_cast<std::int64_t>(size_of(type));
}
inline std::byte const* at(void const* base, std::int64_t element, ElementType type) {
  return static_cast<std::byte const*>(base) + element * static_cast<std::int64_t>(size_of(type));
}

/// The most elements of each block that one MPI call may carry, when it carries `blocks` blocks.
inline std::int64_t limit(ElementType type, int blocks = 1) {
  return elements_per_call(static_cast<std::int64_t>(size_of(type)) * blocks);
}

/// Starts one MPI call of an operation and adds its request to `pending`. `call(MPI_Request*)` returns MPI's code.
template <class Call>
void start(Pending& pending, char const* name, Call&& call) {
  MPI_Request part = MPI_REQUEST_NULL;
  check(call(&part), name, pending.comm->name);
  pending.parts.push_back(part);
}

/// Notes that a message to or from `peer` has begun, and wakes the peer.
inline void begin_with_peer(Pending& pending, int peer) {
  pending.peers.push_back(peer);
  wake_peer(*pending.comm, peer);
}

}  // namespace p3d::comm::detail
