// SPDX-License-Identifier: Apache-2.0
// Types of tokens in files, their names in other programs, and how they become ints. The function of each type is
// compiled (with_type), so the inner loop has no branches on the type.
#include "data/token_type.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace p3d::data {

static_assert(std::endian::native == std::endian::little, "token files are little endian, and read as they are");

namespace {

/// Calls f with a number (zero) of the type.
template <class F>
decltype(auto) with_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::u8: return f(std::uint8_t{});
    case TokenType::i8: return f(std::int8_t{});
    case TokenType::u16: return f(std::uint16_t{});
    case TokenType::i16: return f(std::int16_t{});
    case TokenType::u32: return f(std::uint32_t{});
    case TokenType::i32: return f(std::int32_t{});
    case TokenType::u64: return f(std::uint64_t{});
    case TokenType::i64: break;
  }
  return f(std::int64_t{});
}

/// A type, and its names elsewhere.
struct Row {
  TokenType type;
  char const* name;
  char const* numpy;
  int megatron;  ///< number in Megatron-LM's index; 0: Megatron-LM has no such type
};
constexpr std::array<Row, 8> table{{{TokenType::u8, "uint8", "|u1", 1},
                                    {TokenType::i8, "int8", "|i1", 2},
                                    {TokenType::u16, "uint16", "<u2", 8},
                                    {TokenType::i16, "int16", "<i2", 3},
                                    {TokenType::u32, "uint32", "<u4", 0},
                                    {TokenType::i32, "int32", "<i4", 4},
                                    {TokenType::u64, "uint64", "<u8", 0},
                                    {TokenType::i64, "int64", "<i8", 5}}};

}  // namespace

std::int64_t bytes_of(TokenType type) {
  return with_type(type, [](auto zero) { return static_cast<std::int64_t>(sizeof(zero)); });
}

char const* name_of(TokenType type) { return table[static_cast<std::size_t>(type)].name; }

std::optional<TokenType> numpy_type(std::string_view description) {
  for (auto const& row : table) {
    std::string_view const name = row.numpy;
    if (description == name) return row.type;
    if (name[0] == '|' && description.size() == 3 && description[0] == '<' && description.substr(1) == name.substr(1))
      return row.type;
  }
  return {};
}

std::optional<TokenType> megatron_type(int code) {
  for (auto const& row : table) {
    if (row.megatron == code && code != 0) return row.type;
  }
  return {};
}

std::size_t decode(TokenType type, std::byte const* from, std::int64_t below, std::span<int> out) {
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < out.size(); ++i) {
      T id;
      std::memcpy(&id, from + i * sizeof(T), sizeof(T));
      // A negative id is a large unsigned one, so it is refused too.
      if (static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(below)) return i;
      out[i] = static_cast<int>(id);
    }
    return out.size();
  });
}

std::int64_t value_at(TokenType type, std::byte const* from) {
  return with_type(type, [&](auto zero) {
    std::memcpy(&zero, from, sizeof(zero));
    return static_cast<std::int64_t>(zero);
  });
}

}  // namespace p3d::data
