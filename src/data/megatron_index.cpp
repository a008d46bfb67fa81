// SPDX-License-Identifier: Apache-2.0
// Reads an index of Megatron-LM in place. Everything that the file says is checked before it is used: the header and
// sizes when it is opened, a sequence or a document whenever it is asked for. A token's sequence is found by binary
// search over the first bytes of the sequences. Example: sequences begin at bytes 0, 10 and 14, with 2 bytes a token;
// then token 6 is in the second one.
#include "data/megatron_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

namespace p3d::data {

namespace {

// The header of 34 bytes: the magic of 9, a version of 8, the type of tokens in 1, the numbers of sequences and of
// starts of documents in 8 each. Behind it come the sizes of sequences (4 bytes each), their first bytes in the .bin
// file (8 each), and the first sequence of each document (8 each, one more than documents).
constexpr std::int64_t header_bytes = 34;
constexpr std::string_view magic("MMIDIDX\0\0", 9);
/// Places of each array that are checked when an index is opened.
constexpr std::int64_t samples = 1000;

constexpr char const* again = "make both files again, or copy them again; p3d data check lists all errors";

}  // namespace

MegatronIndex::MegatronIndex(std::string const& path, std::string bin_path, std::int64_t bin_bytes,
                             std::string const& key, bool sampled)
    : file_(path, key), bin_path_(std::move(bin_path)), bin_bytes_(bin_bytes) {
  read_header();
  check_sizes();
  tokens_ = bin_bytes_ / item_;
  if (sampled) check_sample();
  file_.expect(MappedFile::Access::most);  // a new order of documents reads all of it
}

void MegatronIndex::refuse(std::string expected, std::string found, std::int64_t offset) const {
  base::refuse({.expected = std::move(expected),
                .found = std::move(found),
                .where = fmt::format("{}, byte {}", file_.path(), offset),
                .fix = again});
}

void MegatronIndex::read_header() {
  auto const size = file_.size();
  if (size < header_bytes) refuse("an index of at least 34 bytes", fmt::format("{} bytes", size), 0);
  if (std::memcmp(file_.bytes().data(), magic.data(), magic.size()) != 0)
    refuse("\"MMIDIDX\" at the start: an index file of Megatron-LM", "other bytes", 0);
  if (auto const version = file_.load<std::uint64_t>(9); version != 1)
    refuse("version 1 of the index", fmt::format("version {}", version), 9);
  auto const code = file_.load<std::uint8_t>(17);
  auto const type = megatron_type(code);
  if (!type) {
    refuse("integers as tokens: type 1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16)",
           code == 6   ? "type 6 (float64)"
           : code == 7 ? "type 7 (float32)"
                       : fmt::format("type {}", code),
           17);
  }
  type_ = *type;
  item_ = bytes_of(type_);
  auto const sequences = file_.load<std::uint64_t>(18), starts = file_.load<std::uint64_t>(26);
  auto const bytes = static_cast<std::uint64_t>(size);
  // The numbers are compared with the size of the file before anything is multiplied by them: products could overflow.
  if (sequences > bytes / 12)
    refuse(fmt::format("as many sequences as {} bytes can describe", size), fmt::format("{}", sequences), 18);
  if (starts == 0 || starts > bytes / 8)
    refuse(fmt::format("a document array that {} bytes can hold", size), fmt::format("{} entries", starts), 26);
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(starts) - 1;
}

void MegatronIndex::check_sizes() const {
  auto const wanted = header_bytes + 12 * sequences_ + 8 * (documents_ + 1), size = file_.size();
  auto const counts = fmt::format("{} sequences and {} documents", sequences_, documents_);
  if (size == wanted + sequences_ && sequences_ > 0)
    refuse(fmt::format("an index of text, {} bytes for {}", wanted, counts),
           fmt::format("{} bytes: one more for each sequence, as of several modes", size), wanted);
  if (size != wanted)
    refuse(fmt::format("{} bytes for {}", wanted, counts),
           fmt::format("{} bytes{}", size, size < wanted ? ": the file is cut off" : ""), std::min(size, wanted));
  if (bin_bytes_ % item_ != 0) {
    base::refuse({.expected = fmt::format("whole tokens of {} bytes ({})", item_, name_of(type_)),
                  .found = fmt::format("{} bytes", bin_bytes_),
                  .where = bin_path_,
                  .fix = again});
  }
  if (sequences_ == 0 && bin_bytes_ > 0)
    refuse(fmt::format("sequences: {} has {} bytes", bin_path_, bin_bytes_), "none", 18);
}

void MegatronIndex::check_sample() const {
  auto const each = [](std::int64_t count, auto const& check) {
    auto const n = std::min(count, samples);
    for (std::int64_t k = 0; k < n; ++k) check(n < 2 ? 0 : k * ((count - 1) / (n - 1)));
    if (count > 0) check(count - 1);
  };
  // The ends come first: they show best that a file was cut off.
  if (sequences_ > 0) sequence(sequences_ - 1);
  if (documents_ > 0) document(documents_ - 1);
  if (documents_ == 0 && sequences_ > 0)
    refuse(fmt::format("documents for {} sequences", sequences_), "none", header_bytes + 12 * sequences_);
  each(sequences_, [&](std::int64_t i) { sequence(i); });
  each(documents_, [&](std::int64_t i) { document(i); });
}

// The three arrays are read where they lie in the mapped file.
std::int64_t MegatronIndex::size_at(std::int64_t i) const { return file_.load<std::int32_t>(header_bytes + 4 * i); }
std::int64_t MegatronIndex::pointer(std::int64_t i) const {
  return file_.load<std::int64_t>(header_bytes + 4 * sequences_ + 8 * i);
}
std::int64_t MegatronIndex::first_sequence(std::int64_t i) const {
  return file_.load<std::int64_t>(header_bytes + 12 * sequences_ + 8 * i);
}

base::ErrorText MegatronIndex::text(Error const& error, std::string const& of) const {
  return {.expected = error.expected,
          .found = error.found,
          .where = fmt::format("{}, byte {}: {}", file_.path(), error.offset, of),
          .fix = again};
}

std::optional<base::ErrorText> MegatronIndex::sequence_error(std::int64_t i) const {
  auto const of = [&] { return fmt::format("sequence {} of {}", i, sequences_); };
  auto const at_size = header_bytes + 4 * i, at_pointer = header_bytes + 4 * sequences_ + 8 * i;
  auto const size = size_at(i), begin = pointer(i);
  if (size < 0) return text({"a number of tokens, at least 0", fmt::format("{}", size), at_size}, of());
  if (begin < 0) return text({"a byte offset, at least 0", fmt::format("{}", begin), at_pointer}, of());
  if (begin % item_ != 0)
    return text({fmt::format("a byte offset that {} divides ({})", item_, name_of(type_)), fmt::format("{}", begin),
                 at_pointer},
                of());
  auto const bytes = size * item_;  // both factors are small: no overflow
  if (begin > bin_bytes_ - bytes)
    return text(
        {fmt::format("{} tokens within the {} bytes of {}", size, bin_bytes_, bin_path_),
         fmt::format("bytes {} to {}", begin, static_cast<std::uint64_t>(begin) + static_cast<std::uint64_t>(bytes)),
         at_pointer},
        of());
  if (i == 0 && begin != 0)
    return text({"byte 0 as the first of the first sequence", fmt::format("{}", begin), at_pointer}, of());
  bool const last = i == sequences_ - 1;
  auto const end = last ? bin_bytes_ : pointer(i + 1);
  if (begin + bytes != end)
    return text({last ? fmt::format("the last sequence to end with {}, at byte {}", bin_path_, end)
                      : fmt::format("sequences without gaps: the next one begins at byte {}", end),
                 fmt::format("{} tokens from byte {} on, which end at {}", size, begin, begin + bytes), at_pointer},
                of());
  return {};
}

std::optional<base::ErrorText> MegatronIndex::document_error(std::int64_t i) const {
  auto const of = [&] { return fmt::format("document {} of {}", i, documents_); };
  auto const at = header_bytes + 12 * sequences_ + 8 * i;
  auto const begin = first_sequence(i), end = first_sequence(i + 1);
  if (begin < 0 || begin > sequences_)
    return text({fmt::format("a sequence from 0 to {}", sequences_), fmt::format("{}", begin), at}, of());
  if (i == 0 && begin != 0)
    return text({"sequence 0 as the first of the first document", fmt::format("{}", begin), at}, of());
  if (end < begin)
    return text({"documents in ascending order", fmt::format("sequences {} to {}", begin, end), at}, of());
  if (end > sequences_ || (i == documents_ - 1 && end != sequences_))
    return text({fmt::format("{} sequences, with the end of the last document", sequences_),
                 fmt::format("an end at sequence {}", end), at + 8},
                of());
  return {};
}

layout::Range MegatronIndex::sequence(std::int64_t i) const {
  P3D_REQUIRE(i >= 0 && i < sequences_, "the sequence exists");
  if (auto const error = sequence_error(i)) base::refuse(*error);
  auto const begin = pointer(i) / item_;
  return {begin, begin + size_at(i)};
}

layout::Range MegatronIndex::document(std::int64_t i) const {
  P3D_REQUIRE(i >= 0 && i < documents_, "the document exists");
  if (auto const error = document_error(i)) base::refuse(*error);
  auto const first = first_sequence(i), end = first_sequence(i + 1);
  if (first == sequences_) return {tokens_, tokens_};
  auto const begin = sequence(first);
  if (first == end) return {begin.begin, begin.begin};
  auto const last = end - 1 == first ? begin : sequence(end - 1);
  if (last.end < begin.begin)
    base::refuse(text({"sequences in ascending order", fmt::format("tokens {} to {}", begin.begin, last.end),
                       header_bytes + 4 * sequences_ + 8 * first},
                      fmt::format("document {} of {}", i, documents_)));
  return {begin.begin, last.end};
}

std::int64_t MegatronIndex::document_of(std::int64_t token) const {
  auto const byte = token * item_;
  std::int64_t low = 0, high = sequences_;  // search the last sequence that begins at or before the byte
  while (high - low > 1) {
    auto const middle = low + (high - low) / 2;
    (pointer(middle) <= byte ? low : high) = middle;
  }
  std::int64_t first = 0, end = documents_;
  while (end - first > 1) {
    auto const middle = first + (end - first) / 2;
    (first_sequence(middle) <= low ? first : end) = middle;
  }
  return first;
}

void MegatronIndex::walk(std::function<bool(base::ErrorText const&)> const& tell) const {
  for (std::int64_t i = 0; i < sequences_; ++i) {
    if (auto const error = sequence_error(i); error && !tell(*error)) return;
  }
  for (std::int64_t i = 0; i < documents_; ++i) {
    if (auto const error = document_error(i); error && !tell(*error)) return;
  }
  if (documents_ == 0 && sequences_ > 0)
    tell(text({"documents", "none", header_bytes + 12 * sequences_}, fmt::format("{} sequences", sequences_)));
}

}  // namespace p3d::data
