// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hash that is the same on every rank and in every release, which std::hash is not.

#include <cstdint>
#include <string_view>

namespace p3d::base {

inline constexpr std::uint64_t fnv1a_start = 14695981039346656037ULL;

/// The FNV-1a hash of 64 bits (Fowler, Noll, Vo). `state` is the hash of the bytes before, where a hash is continued.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t state = fnv1a_start) {
  for (char const c : bytes) state = (state ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return state;
}

}  // namespace p3d::base
