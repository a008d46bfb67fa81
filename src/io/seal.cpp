// SPDX-License-Identifier: Apache-2.0
// Writing and checking the seal of a checkpoint (seal.hpp shows its text). The check trusts nothing: it hashes the user
// block, reads the numbers, writes the seal again from them and compares the texts, and last hashes all bytes of the
// file that belong to no array.
#include "seal.hpp"

#include "checksum.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <string>
#include <string_view>

namespace p3d::io {

namespace {

constexpr char const* magic = "p3d checkpoint 1\n";
constexpr std::size_t magic_bytes = 17;
constexpr std::size_t head_bytes = magic_bytes + 11 + 21;  // the lines with magic and user_block
constexpr std::size_t hash_line = 17;

std::uint64_t hash_of(std::string_view text) {
  ByteHash hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

/// The hash of all bytes behind the user block that lie in no extent.
std::uint64_t hash_of_others(PosixFile const& file, std::int64_t user_block, std::int64_t file_bytes,
                             std::vector<Extent> const& extents) {
  ByteHash hash;
  std::vector<char> buffer(1 << 16);
  auto const add = [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      auto const n = std::min<std::int64_t>(end - begin, static_cast<std::int64_t>(buffer.size()));
      file.read(begin, buffer.data(), static_cast<std::size_t>(n));
      hash.add(buffer.data(), static_cast<std::size_t>(n));
      begin += n;
    }
  };
  std::int64_t at = user_block;
  for (auto const& e : extents) {
    add(at, e.offset);
    at = e.offset + e.bytes;
  }
  add(at, file_bytes);
  return hash.value();
}

/// The text of the whole user block; empty when it does not fit.
std::string seal_text(std::int64_t user_block, std::int64_t file_bytes, std::uint64_t other_hash,
                      std::vector<Extent> const& extents) {
  auto text = fmt::format("{}user_block {:020}\nfile_bytes {:020}\nother_hash {:016x}\nextents {}\n", magic, user_block,
                          file_bytes, other_hash, extents.size());
  for (auto const& e : extents) text += fmt::format("{} {}\n", e.offset, e.bytes);
  if (text.size() + hash_line > static_cast<std::size_t>(user_block)) return {};
  text.resize(static_cast<std::size_t>(user_block) - hash_line, '\n');
  return text + fmt::format("{:016x}\n", hash_of(text));
}

/// Takes words and numbers off the front of a text. Each call returns false when something else stands there.
class Words {
public:
  explicit Words(std::string_view text) : text_(text) {}
  bool word(std::string_view expected) {
    if (!text_.starts_with(expected)) return false;
    text_.remove_prefix(expected.size());
    return true;
  }
  /// Takes a number and the character behind it.
  template <class T>
  bool number(T& out, char behind, int base = 10) {
    auto const [end, problem] = std::from_chars(text_.data(), text_.data() + text_.size(), out, base);
    if (problem != std::errc{}) return false;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return word(std::string_view(&behind, 1));
  }

private:
  std::string_view text_;
};

}  // namespace

base::Error damaged(std::string const& path, std::string expected, std::string found) {
  return base::Error({.expected = std::move(expected),
                      .found = std::move(found),
                      .where = path,
                      .fix = "use another checkpoint (p3d checkpoint ls FOLDER), or copy this one again"},
                     base::ExitCode::bad_input);
}

std::int64_t user_block_bytes(std::size_t extents) {
  return static_cast<std::int64_t>(std::bit_ceil(std::max<std::size_t>(4096, 160 + 42 * extents)));
}

std::vector<Extent> joined(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(), [](auto const& a, auto const& b) { return a.offset < b.offset; });
  std::vector<Extent> out;
  for (auto const& e : extents) {
    if (!out.empty() && out.back().offset + out.back().bytes == e.offset) {
      out.back().bytes += e.bytes;
    } else {
      out.push_back(e);
    }
  }
  return out;
}

void write_seal(PosixFile const& file, std::int64_t user_block, std::vector<Extent> extents) {
  auto const places = joined(std::move(extents));
  auto const file_bytes = file.size();
  auto const text = seal_text(user_block, file_bytes, hash_of_others(file, user_block, file_bytes, places), places);
  P3D_REQUIRE(!text.empty(), "the seal fits into the user block");
  file.write(0, text.data(), text.size());
}

Seal check_seal(PosixFile const& file) {
  auto const size = file.size();
  auto const& path = file.path();
  std::string head(head_bytes, '\0');
  if (size < 512) throw damaged(path, "a p3d checkpoint", fmt::format("a file of {} bytes", size));
  file.read(0, head.data(), head.size());
  if (!head.starts_with(magic))
    throw damaged(path, "the seal of a p3d checkpoint at the beginning of the file", "something else");
  Seal out;
  auto& user_block = out.user_block;
  Words start(std::string_view(head).substr(magic_bytes));
  start.word("user_block ");
  if (!start.number(user_block, '\n') || user_block < 512 || user_block > size ||
      !std::has_single_bit(static_cast<std::uint64_t>(user_block))) {
    throw damaged(path, fmt::format("a seal within the {} bytes of the file", size),
                  fmt::format("one of {} bytes: it is damaged, or the file was cut off", user_block));
  }
  std::string block(static_cast<std::size_t>(user_block), '\0');
  file.read(0, block.data(), block.size());
  auto const body = std::string_view(block).substr(0, block.size() - hash_line);
  auto const hash = fmt::format("{:016x}\n", hash_of(body));
  if (block.substr(body.size()) != hash)
    throw damaged(path, "an intact seal (" + hash.substr(0, 16) + ")", "a damaged one");

  Words in(body.substr(magic_bytes));
  std::int64_t again = 0, file_bytes = 0, count = 0;
  std::uint64_t other = 0;
  bool good = in.word("user_block ") && in.number(again, '\n') && in.word("file_bytes ") &&
              in.number(file_bytes, '\n') && in.word("other_hash ") && in.number(other, '\n', 16) &&
              in.word("extents ") && in.number(count, '\n');
  std::int64_t end = user_block;
  for (std::int64_t i = 0; good && i < count; ++i) {
    Extent e;
    good = in.number(e.offset, ' ') && in.number(e.bytes, '\n');
    if (!good) break;
    if (e.offset < end || e.bytes < 1 || e.bytes > file_bytes || e.offset > file_bytes - e.bytes) {
      throw damaged(path,
                    fmt::format("in the seal, extent {}: one between byte {} and byte {}", i + 1, end, file_bytes),
                    fmt::format("{} bytes at byte {}", e.bytes, e.offset));
    }
    end = e.offset + e.bytes;
    out.extents.push_back(e);
  }
  // The text must be the one that write_seal() makes: no number in another form, nothing more.
  if (!good || seal_text(user_block, file_bytes, other, out.extents) != block) {
    throw damaged(path, fmt::format("a seal that lists its {} extents", count),
                  fmt::format("one that is not in its form after {}", out.extents.size()));
  }
  if (file_bytes != size) {
    throw damaged(path, fmt::format("{} bytes", file_bytes),
                  fmt::format("{}: the file was {}", size, size < file_bytes ? "cut off" : "lengthened"));
  }
  auto const found = hash_of_others(file, user_block, file_bytes, out.extents);
  if (found != other) {
    throw damaged(path, fmt::format("the description of the arrays as it was written (hash {:016x})", other),
                  fmt::format("a damaged one (hash {:016x})", found));
  }
  return out;
}

}  // namespace p3d::io
