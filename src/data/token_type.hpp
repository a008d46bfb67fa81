// SPDX-License-Identifier: Apache-2.0
#pragma once
// How token ids lie in a file: integers of 1 to 8 bytes, little endian.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace p3d::data {

enum class TokenType { u8, i8, u16, i16, u32, i32, u64, i64 };

std::int64_t bytes_of(TokenType type);
/// "uint16": as numpy names it.
char const* name_of(TokenType type);
/// The type behind numpy's description of it ("<u2", "|u1"); none for floats, other byte orders and anything else.
std::optional<TokenType> numpy_type(std::string_view description);
/// The type behind a number of Megatron-LM's index files; none for its floats (6, 7) and unknown ones.
std::optional<TokenType> megatron_type(int code);

/// Reads out.size() ids, which lie at `from` in any alignment. Stops at the first that is not in [0, below), and
/// returns its number; out.size() when all are.
std::size_t decode(TokenType type, std::byte const* from, std::int64_t below, std::span<int> out);
/// One id as it is, of u64 its bits.
std::int64_t value_at(TokenType type, std::byte const* from);

}  // namespace p3d::data
