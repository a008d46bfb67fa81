// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the operations of a Communicator share that hand their buffers to MPI.

#include <cstddef>
#include <cstdint>

#include "late_start.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

inline std::byte* at(void* base, std::int64_t element, ElementType type) {
  return static_cast<std::byte*>(base) + element * static_cast<std::int64_t>(size_of(type));
}
inline std::byte const* at(void const* base, std::int64_t element, ElementType type) {
  return static_cast<std::byte const*>(base) + element * static_cast<std::int64_t>(size_of(type));
}

/// Elements of each block that one MPI call may carry.
inline std::int64_t limit(ElementType type, int blocks = 1) {
  return elements_per_call(static_cast<std::int64_t>(size_of(type)) * blocks);
}

/// Starts one MPI call of an operation: `call(MPI_Request*)` returns MPI's code.
template <class Call>
void start(Pending& pending, char const* name, Call&& call) {
  MPI_Request part = MPI_REQUEST_NULL;
  check(call(&part), name, pending.comm->name);
  pending.parts.push_back(part);
}

}  // namespace p3d::comm::detail
