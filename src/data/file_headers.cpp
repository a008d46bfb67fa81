// SPDX-License-Identifier: Apache-2.0
// The headers of llm.c's and numpy's files. Both are checked against the size of the file: a file that was cut off
// while it was copied is found before a run starts.
//
// llm.c: 256 numbers of 32 bits, of which the first three are the magic number, the version and the number of tokens.
// numpy: "\x93NUMPY", a version, the length of a text, and the text itself, a dictionary such as {'descr': '<u2',
// 'fortran_order': False, 'shape': (1000,), }.
#include "data/file_headers.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace p3d::data {

namespace {

[[noreturn]] void refuse(MappedFile const& file, std::int64_t offset, std::string expected, std::string found,
                         std::string fix = "make the file again, or copy it again") {
  base::refuse({.expected = std::move(expected),
                .found = std::move(found),
                .where = fmt::format("{}, byte {}", file.path(), offset),
                .fix = std::move(fix)});
}

/// Throws unless the file ends with its last token.
void check_size(MappedFile const& file, TokenPlace const& place) {
  auto const there = file.size() - place.offset, item = bytes_of(place.type);
  if (place.count <= there / item && place.count * item == there) return;
  refuse(file, place.offset, fmt::format("{} tokens of {} bytes ({})", place.count, item, name_of(place.type)),
         fmt::format("{} bytes after the header{}", there,
                     place.count > there / item ? ": the file is cut off" : ": more than that"));
}

constexpr std::int64_t llmc_header = 1024;
constexpr std::int32_t gpt2_tokens = 20240520, llama3_tokens = 20240801;

constexpr std::string_view npy_magic("\x93NUMPY", 6);

/// The value behind 'key': in the dictionary of a numpy header, up to the next comma that is not inside parentheses.
std::optional<std::string_view> npy_value(std::string_view dictionary, std::string_view key) {
  auto const name = fmt::format("'{}'", key);
  auto const at = dictionary.find(name);
  auto const colon = at == std::string_view::npos ? at : dictionary.find_first_not_of(' ', at + name.size());
  if (colon == std::string_view::npos || dictionary[colon] != ':') return {};
  auto value = dictionary.substr(colon + 1);
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  auto const end = value.starts_with('(') ? value.find(')') : value.find_first_of(",}");
  if (end == std::string_view::npos) return {};
  value = value.substr(0, value.starts_with('(') ? end + 1 : end);
  while (value.ends_with(' ')) value.remove_suffix(1);
  return value;
}

/// The product of a shape like "(3, 4)" or "(12,)"; none for anything else.
std::optional<std::int64_t> npy_count(std::string_view shape) {
  if (!shape.starts_with('(') || !shape.ends_with(')')) return {};
  shape = shape.substr(1, shape.size() - 2);
  std::int64_t count = 1;
  int dimensions = 0;
  while (true) {
    shape.remove_prefix(std::min(shape.find_first_not_of(' '), shape.size()));
    if (shape.empty()) break;
    std::int64_t n = 0;
    auto const read = std::from_chars(shape.data(), shape.data() + shape.size(), n);
    if (read.ec != std::errc{} || n < 0 || __builtin_mul_overflow(count, n, &count)) return {};
    shape.remove_prefix(static_cast<std::size_t>(read.ptr - shape.data()));
    shape.remove_prefix(std::min(shape.find_first_not_of(' '), shape.size()));
    ++dimensions;
    if (shape.empty()) break;
    if (shape[0] != ',') return {};
    shape.remove_prefix(1);
  }
  if (dimensions < 1 || dimensions > 2) return {};
  return count;
}

}  // namespace

bool looks_like_llmc(MappedFile const& file) {
  if (file.size() < llmc_header) return false;
  auto const magic = file.load<std::int32_t>(0);
  return magic == gpt2_tokens || magic == llama3_tokens;
}

bool looks_like_npy(MappedFile const& file) {
  return file.size() >= 10 && std::memcmp(file.bytes().data(), npy_magic.data(), npy_magic.size()) == 0;
}

TokenPlace read_llmc_header(MappedFile const& file) {
  if (file.size() < llmc_header)
    refuse(file, 0, "a header of 1024 bytes, as llm.c writes it", fmt::format("{} bytes", file.size()));
  auto const magic = file.load<std::int32_t>(0), version = file.load<std::int32_t>(4),
             count = file.load<std::int32_t>(8);
  if (magic != gpt2_tokens && magic != llama3_tokens)
    refuse(file, 0, "the magic number 20240520 or 20240801: tokens of llm.c",
           magic == 20240522 ? "20240522: an evaluation file of llm.c" : fmt::format("{}", magic),
           "name a file of tokens, or correct data.format");
  bool const wide = magic == llama3_tokens;
  if (version != (wide ? 7 : 1))
    refuse(file, 4, fmt::format("version {} (uint{})", wide ? 7 : 1, wide ? 32 : 16), fmt::format("{}", version));
  if (count < 0) refuse(file, 8, "a number of tokens, at least 0", fmt::format("{}", count));
  TokenPlace const place{wide ? TokenType::u32 : TokenType::u16, llmc_header, count};
  check_size(file, place);
  return place;
}

TokenPlace read_npy_header(MappedFile const& file) {
  if (!looks_like_npy(file)) refuse(file, 0, "\"\\x93NUMPY\" at the start: an array of numpy", "other bytes");
  auto const version = file.load<std::uint8_t>(6);
  if (version < 1 || version > 3) refuse(file, 6, "version 1, 2 or 3 of numpy's format", fmt::format("{}", version));
  std::int64_t const fixed = version == 1 ? 10 : 12;
  if (file.size() < fixed) refuse(file, 8, "the length of the header", "the end of the file");
  std::int64_t const length = version == 1 ? file.load<std::uint16_t>(8) : file.load<std::uint32_t>(8);
  if (length > file.size() - fixed)
    refuse(file, 8, fmt::format("a header within the {} bytes of the file", file.size()), fmt::format("{}", length));
  std::string_view const dictionary(reinterpret_cast<char const*>(file.bytes().data()) + fixed,
                                    static_cast<std::size_t>(length));
  auto const shown = [](std::optional<std::string_view> value) {
    return value ? std::string(value->substr(0, 60)) : std::string("none");
  };
  auto const descr = npy_value(dictionary, "descr"), order = npy_value(dictionary, "fortran_order"),
             shape = npy_value(dictionary, "shape");
  std::optional<TokenType> type;
  if (descr && descr->size() >= 2 && (descr->front() == '\'' || descr->front() == '"'))
    type = numpy_type(descr->substr(1, descr->size() - 2));
  if (!type)
    refuse(file, fixed, "integers as tokens, little endian: descr '|u1', '<u2', '<i4' and so on", shown(descr),
           "convert the array: numpy.save(FILE, array.astype('<u4'))");
  auto const count = shape ? npy_count(*shape) : std::nullopt;
  if (!count) refuse(file, fixed, "a shape of one or two dimensions", shown(shape), "save array.reshape(-1)");
  bool const flat = shape->find(',') == std::string_view::npos || shape->ends_with(",)");
  if (order != "False" && !(order == "True" && flat))
    refuse(file, fixed, "an array in C order", "fortran_order " + shown(order), "save numpy.ascontiguousarray(array)");
  TokenPlace const place{*type, fixed + length, *count};
  check_size(file, place);
  return place;
}

}  // namespace p3d::data
