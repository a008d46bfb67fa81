// SPDX-License-Identifier: Apache-2.0
#pragma once
// The hash of files' content, which checkpoints keep.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace p3d::data {

/// Bytes up to which all content is hashed: 64 MiB.
inline constexpr std::int64_t hashed_whole = std::int64_t{1} << 26;

/// The xxHash64 (seed 0) of the text `kind`, then of
/// - up to 64 MiB in all: the bytes of the parts, one after the other;
/// - beyond: "p3d fingerprint 1", the number of parts and their sizes (u64, little endian), the first 4 KiB of each
///   part, then, of all parts as one array of n bytes: the first and the last 64 KiB, and 1,000 blocks of 4 KiB at
///   i * (n - 4096) / 999, i from 0. A change elsewhere does not show.
std::uint64_t content_hash(std::string_view kind, std::vector<std::span<std::byte const>> const& parts);

}  // namespace p3d::data
