// SPDX-License-Identifier: Apache-2.0
#pragma once
// Types of token ids in files: integers of 1 to 8 bytes, little endian.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace p3d::data {

enum class TokenType { u8, i8, u16, i16, u32, i32, u64, i64 };

std::int64_t bytes_of(TokenType type);
/// The name that numpy gives to the type: "uint16".
char const* name_of(TokenType type);
/// The type of numpy's description ("<u2", "|u1"); none for floats, other byte orders and anything else.
std::optional<TokenType> numpy_type(std::string_view description);
/// The type of a number in Megatron-LM's index files; none for its floats (6, 7) and unknown ones.
std::optional<TokenType> megatron_type(int code);

/// Reads out.size() ids, which lie at `from` in any alignment. Stops at the first id that is not in [0, below), and
/// returns its number; returns out.size() when all are.
std::size_t decode(TokenType type, std::byte const* from, std::int64_t below, std::span<int> out);
/// One id as it is stored; for u64 its bits.
std::int64_t value_at(TokenType type, std::byte const* from);

}  // namespace p3d::data
