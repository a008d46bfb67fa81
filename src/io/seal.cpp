#include "seal.hpp"

#include "checksum.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <sstream>
#include <string>

namespace p3d::io {

namespace {

constexpr char const* magic = "p3d checkpoint 1\n";
constexpr std::size_t head_bytes = 17 + 11 + 21;  // the first two lines
constexpr std::size_t hash_line = 17;

base::Error damaged(std::string const& path, std::string expected, std::string found) {
  return base::Error({.expected = std::move(expected),
                      .found = std::move(found),
                      .where = path,
                      .fix = "use another checkpoint (p3d checkpoint ls FOLDER), or copy this one again"});
}

std::uint64_t hash_of(std::string_view text) {
  ByteHash hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

/// Hash of the bytes from the end of the user block on that lie in no extent.
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

}  // namespace

std::int64_t user_block_bytes(std::size_t extents) {
  return static_cast<std::int64_t>(std::bit_ceil(std::max<std::size_t>(4096, 160 + 42 * extents)));
}

void write_seal(PosixFile const& file, std::int64_t user_block, std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(), [](auto const& a, auto const& b) { return a.offset < b.offset; });
  std::vector<Extent> merged;
  for (auto const& e : extents) {
    if (!merged.empty() && merged.back().offset + merged.back().bytes == e.offset) {
      merged.back().bytes += e.bytes;
    } else {
      merged.push_back(e);
    }
  }
  auto const file_bytes = file.size();
  auto text = fmt::format("{}user_block {:020}\nfile_bytes {:020}\nother_hash {:016x}\nextents {}\n", magic, user_block,
                          file_bytes, hash_of_others(file, user_block, file_bytes, merged), merged.size());
  for (auto const& e : merged) text += fmt::format("{} {}\n", e.offset, e.bytes);
  P3D_REQUIRE(text.size() + hash_line <= static_cast<std::size_t>(user_block), "the seal fits into the user block");
  text.resize(static_cast<std::size_t>(user_block) - hash_line, '\n');
  text += fmt::format("{:016x}\n", hash_of(text));
  file.write(0, text.data(), text.size());
}

void check_seal(PosixFile const& file) {
  auto const size = file.size();
  std::string head(head_bytes, '\0');
  if (size < 512) throw damaged(file.path(), "a p3d checkpoint", fmt::format("a file of {} bytes", size));
  file.read(0, head.data(), head.size());
  long long user_block = 0;
  if (!head.starts_with(magic) || std::sscanf(head.c_str() + 17, "user_block %20lld", &user_block) != 1) {
    throw damaged(file.path(), "the seal of a p3d checkpoint at the beginning of the file", "something else");
  }
  if (user_block < 512 || user_block > size || !std::has_single_bit(static_cast<std::uint64_t>(user_block))) {
    throw damaged(file.path(), fmt::format("a seal within the {} bytes of the file", size),
                  fmt::format("one of {} bytes: it is damaged, or the file was cut off", user_block));
  }
  std::string block(static_cast<std::size_t>(user_block), '\0');
  file.read(0, block.data(), block.size());
  auto const body = std::string_view(block).substr(0, block.size() - hash_line);
  auto const hash = fmt::format("{:016x}\n", hash_of(body));
  if (block.substr(body.size()) != hash)
    throw damaged(file.path(), "an intact seal (" + hash.substr(0, 16) + ")", "a damaged one");

  std::istringstream in{std::string(body.substr(17))};
  std::string word, other;
  std::int64_t number = 0, file_bytes = 0;
  std::size_t count = 0;
  in >> word >> number >> word >> file_bytes >> word >> other >> word >> count;
  std::vector<Extent> extents(count);
  for (auto& e : extents) in >> e.offset >> e.bytes;
  if (file_bytes != size) {
    throw damaged(file.path(), fmt::format("{} bytes", file_bytes),
                  fmt::format("{}: the file was {}", size, size < file_bytes ? "cut off" : "lengthened"));
  }
  auto const found = fmt::format("{:016x}", hash_of_others(file, user_block, file_bytes, extents));
  if (found != other) {
    throw damaged(file.path(), "the description of the arrays as it was written (hash " + other + ")",
                  "a damaged one (hash " + found + ")");
  }
}

}  // namespace p3d::io
